// Hears that a worker begins to end, by the robust mutex that it holds in the board (client/life.h): that is before the
// kernel takes its address space apart, and so long before SIGCHLD where the process is large. Needs Linux 5.16
// (futex_waitv); without it nothing is told, and SIGCHLD alone tells.
//
//   ExitWatch watch(poller, [&](int rank) { ... look at /proc: perhaps only a thread ended ... });
//   watch.Follow(lives);
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/poller.h"

namespace lockstep::agent {

struct Life {
  int rank = 0;
  uint32_t* word = nullptr;  // ls_life_word(); must stay mapped for as long as it is followed
};

class ExitWatch {
 public:
  // `begun` runs in the poller's thread, once for each life that ends.
  ExitWatch(Poller& poller, std::function<void(int rank)> begun);
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;
  // These, and no others from now on; at most 127, which is what the kernel takes at once.
  void Follow(std::vector<Life> lives);

 private:
  void Loop(const std::stop_token& stop);
  // Ends the thread's wait.
  void Nudge();
  void Tell();

  Poller& poller_;
  std::function<void(int)> begun_;
  Fd told_;  // eventfd: ended_ has something
  std::atomic<uint32_t> nudges_ = 0;
  std::mutex mutex_;  // guards lives_ and ended_
  std::vector<Life> lives_;
  std::vector<int> ended_;
  std::jthread thread_;
};

}  // namespace lockstep::agent
