// The tests of the agent's own machine (lockstep/probe) while nothing of the job runs: a process of its own, so that
// what is broken enough to kill a program kills that one. Lives in the poller's thread.
//
//   probing.OpenRing(spec);  // of several nodes: where the one before this one in a ring reaches its tests
//   probing.Begin(spec, command, [&](const control::Probed& answer) { ... });
//   probing.Stop();  // the job goes on
#pragma once

#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/agent/spec.h"
#include "lockstep/base/file.h"
#include "lockstep/base/mailbox.h"
#include "lockstep/control/events.h"

namespace lockstep::agent {

class Probing {
 public:
  using Done = std::function<void(const control::Probed& answer)>;

  explicit Probing(Poller& poller) : answers_(poller) {}
  ~Probing();

  void OpenRing(const RunSpec& spec);
  // Of the next test, which is another one after each; 0: there is none.
  int ring_port() const { return ring_.valid() ? ring_port_ : 0; }

  // Asked the same again, it goes on; whatever else was under way is stopped, and answers nothing.
  void Begin(const RunSpec& spec, const control::Probe& command, Done done);
  void Stop();

 private:
  Mailbox answers_;
  std::jthread thread_;
  Fd ring_;  // listens
  int ring_port_ = 0;
  uint64_t turn_ = 0;
  std::optional<std::pair<EpochId, control::Rung>> asked_;
};

}  // namespace lockstep::agent
