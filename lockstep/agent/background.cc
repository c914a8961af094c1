#include "lockstep/agent/background.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "lockstep/agent/thread_signals.h"

namespace lockstep::agent {

Background::Background(Poller& poller) : poller_(poller), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  poller_.Watch(wake_.get(), [this] { Complete(); });
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

Background::~Background() {
  thread_.request_stop();
  thread_.join();
  poller_.Forget(wake_.get());
}

void Background::Run(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Background::Loop(const std::stop_token& stop) {
  TakeNoSignals();
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !jobs_.empty(); })) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    Completion completion = job();
    lock.lock();
    completions_.push_back(std::move(completion));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &one, sizeof(one));
  }
}

void Background::Complete() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
  std::deque<Completion> ready;
  {
    const std::lock_guard lock(mutex_);
    ready.swap(completions_);
  }
  for (const Completion& completion : ready) completion();
}

}  // namespace lockstep::agent
