#include "lockstep/base/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace lockstep {

Mailbox::Mailbox(Poller& poller) : poller_(poller), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  poller_.Watch(wake_.get(), [this] { Deliver(); });
}

void Mailbox::Post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  work_.push_back(std::move(work));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = write(wake_.get(), &one, sizeof(one));
}

void Mailbox::Close() {
  poller_.Forget(wake_.get());
  const std::lock_guard lock(mutex_);
  closed_ = true;
  work_.clear();
}

void Mailbox::Deliver() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
  std::deque<std::function<void()>> ready;
  {
    const std::lock_guard lock(mutex_);
    ready.swap(work_);
  }
  for (const auto& work : ready) work();
}

}  // namespace lockstep
