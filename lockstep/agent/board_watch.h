// Hears at once what workers do to futex words of the board. That one begins to end, by the robust mutex that it holds
// (client/life.h): that is before the kernel takes its address space apart, and so long before SIGCHLD where the
// process is large. And that a checkpoint became whole on this node, by the bell (client/bell.h), but not more often
// than every 10 ms. Needs Linux 5.16 (futex_waitv); without it nothing is told: SIGCHLD and the tick are left.
//
//   BoardWatch watch(poller, {.ends = [&](int rank) { ... look at /proc: perhaps only a thread ended ... },
//                             .rings = [&] { ... }});
//   watch.Follow(lives, ls_bell_word(board));
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/base/mailbox.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/units.h"

namespace lockstep::agent {

struct Life {
  int rank = 0;
  uint32_t* word = nullptr;  // ls_life_word(); must stay mapped for as long as it is followed
};

class BoardWatch {
 public:
  // Both run in the poller's thread.
  struct Listener {
    std::function<void(int rank)> ends;  // once for each life
    std::function<void()> rings;
  };
  BoardWatch(Poller& poller, Listener listener);
  ~BoardWatch();
  BoardWatch(const BoardWatch&) = delete;
  BoardWatch& operator=(const BoardWatch&) = delete;
  // These, and no others from now on; at most 126, for the kernel takes 128 words at once. bell: may be none.
  void Follow(std::vector<Life> lives, uint32_t* bell = nullptr);

 private:
  void Loop(const std::stop_token& stop);
  void LookAtLives(std::vector<futex_waitv>& waiters);
  void LookAtBell(std::vector<futex_waitv>& waiters, Nanos now);
  // Ends the thread's wait.
  void Nudge();

  Listener listener_;
  Mailbox told_;
  std::atomic<uint32_t> nudges_ = 0;
  std::mutex mutex_;  // guards the following
  std::vector<Life> lives_;
  uint32_t* bell_ = nullptr;
  uint32_t heard_ = 0;  // the bell's value when it was last told
  Nanos heard_at_;
  std::jthread thread_;
};

}  // namespace lockstep::agent
