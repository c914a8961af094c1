// This node's part in a search by replay, which the coordinator leads (control/replay_search.h): its ranks of one run
// after the other, each in a process of its own (replay_child.h), whose output stays in incident_N/replay of the run
// directory. Lives in the poller's thread.
//
//   Replaying replaying(poller, [&](const control::Said& said) { ... });
//   replaying.Ready(spec, probe);
//   replaying.Begin(spec, run);
//   replaying.Stop(stop);  replaying.StopAll();  // the job goes on
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "lockstep/agent/spec.h"
#include "lockstep/base/mailbox.h"
#include "lockstep/control/link.h"

namespace lockstep::agent {

class Replaying {
 public:
  using Say = std::function<void(const control::Said& said)>;

  Replaying(Poller& poller, Say say) : answers_(poller), say_(std::move(say)) {}
  ~Replaying();

  // Another search than that of before ends what runs. Asked the same again, it says all it knows again.
  void Ready(const RunSpec& spec, const control::Probe& probe);
  // Another run than that of before ends what runs.
  void Begin(const RunSpec& spec, const control::ReplayRun& run);
  void Stop(const control::ReplayStop& stop);
  void StopAll();

 private:
  void EndThread();

  Mailbox answers_;
  Say say_;
  std::jthread thread_;
  uint64_t turn_ = 0, search_ = 0, run_ = 0;   // both only grow
  bool over_ = true;                           // the search
  std::optional<control::ReplayEnded> ended_;  // the run
};

}  // namespace lockstep::agent
