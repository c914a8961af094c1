// The signals that a process of ours takes through a descriptor instead of dying of them.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/poller.h"

namespace lockstep::node {

// Blocks `ends`, and SIGHUP, SIGPIPE and SIGTSTP even if they don't end the job: the terminal went away, training goes
// on. Before the first thread starts: threads inherit the mask, and one that does not block these would die of them.
void BlockSignals(const std::vector<int>& ends);

class Signals {
 public:
  // `asked`: one of `ends` came, and it meant us; `suspend`: Ctrl-Z.
  Signals(Poller& poller, const std::vector<int>& ends, std::function<void(int signal)> asked,
          std::function<void()> suspend);
  ~Signals();

 private:
  void Hear();

  Poller& poller_;
  const std::vector<int> ends_;
  const std::function<void(int)> asked_;
  const std::function<void()> suspend_;
  const bool had_terminal_;  // one that goes away takes nothing with it; a SIGHUP by kill(1) does
  Fd fd_;
};

}  // namespace lockstep::node
