#include "lockstep/base/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep {
namespace {

void DrainCounter(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd, &count, sizeof(count));
}

epoll_event Awaited(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLHUP;
  event.data.fd = fd;
  return event;
}

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  LS_CHECK(epoll_.valid() && wake_.valid(), "errno {}", errno);
  Watch(wake_.get(), [this] {
    DrainCounter(wake_.get());
    stopped_ = true;
  });
}

void Poller::Watch(int fd, std::function<void()> ready) {
  epoll_event event = Awaited(fd);
  const int operation = watched_.contains(fd) ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  LS_CHECK(epoll_ctl(epoll_.get(), operation, fd, &event) == 0, "fd {}, errno {}", fd, errno);
  watched_[fd] = {std::move(ready)};
}

void Poller::AwaitRoom(int fd, bool wanted) {
  if (std::exchange(watched_.at(fd).awaits_room, wanted) == wanted) return;
  epoll_event event = Awaited(fd);
  if (wanted) event.events |= EPOLLOUT;
  LS_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0, "fd {}, errno {}", fd, errno);
}

void Poller::Forget(int fd) {
  if (watched_.erase(fd) != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Poller::Dispatch(int fd) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;     // forgotten by a callback of this round
  const auto ready = found->second.ready;  // a copy: the callback may forget itself
  ready();
}

void Poller::Run(Seconds period, const std::function<void()>& tick) {
  timer_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  period_ = Seconds{};
  SetPeriod(period);
  Watch(timer_.get(), [&] {
    DrainCounter(timer_.get());
    tick();
  });
  std::array<epoll_event, 32> events{};
  for (stopped_ = false; !stopped_;) {
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    for (int i = 0; i < count && !stopped_; ++i) Dispatch(events.at(static_cast<size_t>(i)).data.fd);
  }
  Forget(timer_.get());
  timer_.Close();
}

void Poller::SetPeriod(Seconds period) {
  if (!timer_.valid() || period == period_) return;
  period_ = period;
  const int64_t nanos = ToNanos(period).value;
  const timespec every{nanos / 1'000'000'000, nanos % 1'000'000'000};
  const itimerspec spec{every, every};
  timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Poller::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &one, sizeof(one));
}

}  // namespace lockstep
