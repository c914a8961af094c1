// Carries work from other threads into the poller's: what is posted runs there, in order. Its owner closes it, in the
// poller's thread, before the poller goes; posting after that does nothing.
#pragma once

#include <deque>
#include <functional>
#include <mutex>

#include "lockstep/base/file.h"
#include "lockstep/base/poller.h"

namespace lockstep {

class Mailbox {
 public:
  explicit Mailbox(Poller& poller);
  void Post(std::function<void()> work);  // from any thread
  void Close();

 private:
  void Deliver();

  Poller& poller_;
  Fd wake_;
  std::mutex mutex_;  // guards work_ and closed_
  std::deque<std::function<void()>> work_;
  bool closed_ = false;
};

}  // namespace lockstep
