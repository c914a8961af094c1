#include "lockstep/agent/board_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "lockstep/base/background_thread.h"

namespace lockstep::agent {
namespace {

constexpr size_t kMostLives = FUTEX_WAITV_MAX - 2;  // two are for the nudge and the bell
constexpr Nanos kBetweenRings{10'000'000};          // steps may be much shorter, and each word to the coordinator costs

timespec Timespec(Nanos at) { return {at.value / 1'000'000'000, at.value % 1'000'000'000}; }

Nanos Monotonic() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return {now.tv_sec * 1'000'000'000 + now.tv_nsec};
}

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

BoardWatch::BoardWatch(Poller& poller, Listener listener) : listener_(std::move(listener)), told_(poller) {
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

BoardWatch::~BoardWatch() {
  thread_.request_stop();
  Nudge();
  thread_.join();
  told_.Close();
}

void BoardWatch::Follow(std::vector<Life> lives, uint32_t* bell) {
  lives.resize(std::min(lives.size(), kMostLives));
  {
    const std::lock_guard lock(mutex_);
    lives_ = std::move(lives);
    bell_ = bell;
  }
  Nudge();
}

void BoardWatch::Nudge() {
  nudges_.fetch_add(1);
  syscall(SYS_futex, &nudges_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void BoardWatch::Loop(const std::stop_token& stop) {
  TakeNoSignals();
  while (!stop.stop_requested()) {
    std::vector<futex_waitv> waiters = {Waiter(&nudges_, nudges_.load(), FUTEX_PRIVATE_FLAG)};
    timespec until{};
    {
      const std::lock_guard lock(mutex_);
      const Nanos now = Monotonic();
      LookAtLives(waiters);
      LookAtBell(waiters, now);
      if (bell_ != nullptr && now - heard_at_ < kBetweenRings) until = Timespec(heard_at_ + kBetweenRings);
    }
    const bool timed = until.tv_sec != 0 || until.tv_nsec != 0;
    const long woken =
        syscall(SYS_futex_waitv, waiters.data(), waiters.size(), 0, timed ? &until : nullptr, CLOCK_MONOTONIC);
    const bool expected = woken >= 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT;
    if (!expected) return;  // a kernel, or a filter, without futex_waitv
  }
}

void BoardWatch::LookAtLives(std::vector<futex_waitv>& waiters) {
  std::erase_if(lives_, [&](const Life& life) {
    uint32_t value = 0;
    const Sign sign = Read(life.word, value);
    if (sign == Sign::kAlive) waiters.push_back(Waiter(life.word, value, 0));
    if (sign == Sign::kDied) told_.Post([this, rank = life.rank] { listener_.ends(rank); });
    return sign != Sign::kAlive;
  });
}

// Once it has rung, it is not listened to until it may be told again.
void BoardWatch::LookAtBell(std::vector<futex_waitv>& waiters, Nanos now) {
  if (bell_ == nullptr || now - heard_at_ < kBetweenRings) return;
  const uint32_t value = __atomic_load_n(bell_, __ATOMIC_ACQUIRE);
  if (value == heard_) {
    waiters.push_back(Waiter(bell_, value, 0));
    return;
  }
  heard_ = value;
  heard_at_ = now;
  told_.Post([this] { listener_.rings(); });
}

}  // namespace lockstep::agent
