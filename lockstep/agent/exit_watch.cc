#include "lockstep/agent/exit_watch.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/agent/thread_signals.h"

namespace lockstep::agent {
namespace {

constexpr size_t kMostLives = FUTEX_WAITV_MAX - 1;  // one is for the nudge

futex_waitv Waiter(const void* word, uint32_t value, uint32_t flags) {
  futex_waitv waiter{};
  waiter.uaddr = reinterpret_cast<uintptr_t>(word);
  waiter.val = value;
  waiter.flags = FUTEX_32 | flags;
  return waiter;
}

enum class Sign { kAlive, kDied, kNone };

// The word of a holder that lives gets the bit that makes the kernel wake us.
Sign Read(uint32_t* word, uint32_t& value) {
  value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  for (;;) {
    if ((value & FUTEX_OWNER_DIED) != 0) return Sign::kDied;
    if ((value & FUTEX_TID_MASK) == 0) return Sign::kNone;
    if ((value & FUTEX_WAITERS) != 0) return Sign::kAlive;
    const uint32_t marked = value | FUTEX_WAITERS;
    if (__atomic_compare_exchange_n(word, &value, marked, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      value = marked;
      return Sign::kAlive;
    }
  }
}

}  // namespace

ExitWatch::ExitWatch(Poller& poller, std::function<void(int)> begun)
    : poller_(poller), begun_(std::move(begun)), told_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  poller_.Watch(told_.get(), [this] { Tell(); });
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

ExitWatch::~ExitWatch() {
  thread_.request_stop();
  Nudge();
  thread_.join();
  poller_.Forget(told_.get());
}

void ExitWatch::Follow(std::vector<Life> lives) {
  lives.resize(std::min(lives.size(), kMostLives));
  {
    const std::lock_guard lock(mutex_);
    lives_ = std::move(lives);
  }
  Nudge();
}

void ExitWatch::Nudge() {
  nudges_.fetch_add(1);
  syscall(SYS_futex, &nudges_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void ExitWatch::Loop(const std::stop_token& stop) {
  TakeNoSignals();
  while (!stop.stop_requested()) {
    std::vector<futex_waitv> waiters = {Waiter(&nudges_, nudges_.load(), FUTEX_PRIVATE_FLAG)};
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(lives_, [&](const Life& life) {
        uint32_t value = 0;
        const Sign sign = Read(life.word, value);
        if (sign == Sign::kAlive) waiters.push_back(Waiter(life.word, value, 0));
        if (sign == Sign::kDied) ended_.push_back(life.rank);
        return sign != Sign::kAlive;
      });
      const uint64_t one = 1;
      if (!ended_.empty()) [[maybe_unused]]
        const ssize_t wrote = write(told_.get(), &one, sizeof(one));
    }
    const long woken = syscall(SYS_futex_waitv, waiters.data(), waiters.size(), 0, nullptr, 0);
    if (woken < 0 && errno != EAGAIN && errno != EINTR) return;  // a kernel, or a filter, without futex_waitv
  }
}

void ExitWatch::Tell() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(told_.get(), &count, sizeof(count));
  std::vector<int> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (const int rank : ended) begun_(rank);
}

}  // namespace lockstep::agent
