#include "lockstep/node/outlet.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace lockstep::node {
namespace {

constexpr size_t kBehind = 64 << 10;  // bytes that wait

bool AreOneFile(int a, int b) {
  struct stat of_a{}, of_b{};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

}  // namespace

class Outlet::Lane {
 public:
  void Add(int fd, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (kept_ + text.size() > kMostKept) {
      left_out_ += text.size();
      left_out_of_ = fd;
      dropped_ += text.size();
      return;
    }
    SayLeftOut();
    Push(fd, std::string(text));
    changed_.notify_all();
  }

  uint64_t dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }

  bool IsBehind() const {
    const std::lock_guard lock(mutex_);
    return kept_ > kBehind;
  }

  // Of the thread: until all is written and nothing comes any more.
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !waiting_.empty() || ends_; });
      if (waiting_.empty()) return;
      const int fd = waiting_.front().first;  // its place is kept until it is written
      const std::string text = std::move(waiting_.front().second);
      lock.unlock();
      WriteAll(fd, text);
      lock.lock();
      kept_ -= text.size();
      waiting_.pop_front();
      ++written_;
      changed_.notify_all();
    }
  }

  // False: nothing was taken for so long.
  bool Drain(Seconds patience) {
    const std::chrono::duration<double> limit(patience.value);
    std::unique_lock lock(mutex_);
    SayLeftOut();
    ends_ = true;
    changed_.notify_all();
    while (!waiting_.empty()) {
      const uint64_t before = written_;
      if (!changed_.wait_for(lock, limit, [&] { return written_ != before; })) return false;
    }
    return true;
  }

 private:
  void SayLeftOut() {
    if (left_out_ > 0) Push(left_out_of_, agent::LeftOut(std::exchange(left_out_, 0)));
  }

  void Push(int fd, std::string text) {
    kept_ += text.size();
    waiting_.emplace_back(fd, std::move(text));
  }

  // A file that takes no more, such as a terminal that is gone, loses it.
  static void WriteAll(int fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t wrote = write(fd, text.data(), text.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && errno == EAGAIN) {
        pollfd room{fd, POLLOUT, 0};
        poll(&room, 1, -1);
        continue;
      }
      if (wrote <= 0) return;
      text.remove_prefix(static_cast<size_t>(wrote));
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int, std::string>> waiting_;
  size_t kept_ = 0;                      // bytes
  uint64_t left_out_ = 0, dropped_ = 0;  // bytes: since it was last said, and in all
  int left_out_of_ = -1;
  uint64_t written_ = 0;
  bool ends_ = false;
};

Outlet::Outlet(int out, int err) : err_(err), out_lane_(std::make_shared<Lane>()) {
  err_lane_ = AreOneFile(out, err) ? out_lane_ : std::make_shared<Lane>();
  const auto start = [](const std::shared_ptr<Lane>& lane) { std::thread([lane] { lane->Run(); }).detach(); };
  start(out_lane_);
  if (err_lane_ != out_lane_) start(err_lane_);
}

Outlet::~Outlet() {
  (void)out_lane_->Drain(kPatience);
  (void)err_lane_->Drain(kPatience);
}

void Outlet::Write(int fd, std::string_view text) {
  if (!text.empty()) LaneOf(fd)->Add(fd, text);
}

uint64_t Outlet::dropped() const { return out_lane_->dropped() + (err_lane_ != out_lane_ ? err_lane_->dropped() : 0); }

bool Outlet::IsBehind(int fd) const { return LaneOf(fd)->IsBehind(); }

}  // namespace lockstep::node
