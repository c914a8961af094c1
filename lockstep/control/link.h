// What an agent and the coordinator say to each other, wherever the two run. Ranks are the job's, times the
// coordinator's. docs/models/control.md has the conversation; lockstep/rpc carries it between machines.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/control/events.h"
#include "lockstep/control/report.h"
#include "lockstep/detect/hang.h"

namespace lockstep::control {

// ---- an agent says

// The checkpoints that are whole on all ranks of a node.
struct Holding {
  EpochId epoch;  // that acts there
  std::vector<CheckpointId> points;
  std::vector<CheckpointId> coming{};  // of that epoch: those that may yet become so
  int64_t passed = -1;                 // every rank has saved or skipped this step
  bool operator==(const Holding&) const = default;
};
// An agent's answer to ChooseRestore: those of them whose CRCs it has verified, and what it found damaged.
struct RestoreFound {
  EpochId epoch;  // the coming one
  std::vector<CheckpointId> points;
  std::vector<std::string> rejected;
};
// What the ranks of a node look like now.
struct Samples {
  EpochId epoch;
  std::vector<detect::RankSample> ranks;
  std::vector<detect::StackSample> stacks;
  Progress progress;  // of the slowest of them
};
// Answer to HostStore.
struct StoreAt {
  EpochId epoch;
  std::string host;
  int port = 0;
  bool hosted = true;  // false: there is no torch to host it with; rank 0 binds the port itself
};
// The end of what an agent that is new, or back, has to say.
struct AllSaid {
  EpochId epoch;  // the newest that it ever was told of; 0: none
};

using Said = std::variant<EventBody, Holding, RestoreFound, Samples, StoreAt, Observed, AllSaid>;

// ---- an agent is told

// This checkpoint is whole on all nodes: ranks may give up what is older. Of this epoch no other one up to dead_step
// can become so any more.
struct Commit {
  EpochId epoch;
  CheckpointId point;  // epoch 0: none
  int64_t dead_step = -1;
  bool operator==(const Commit&) const = default;
};
// Sample the dearer counters too, and stacks: somebody holds the job up.
struct LookClosely {
  EpochId epoch;
  bool closely = false;
};
// The rendezvous store of this epoch is to be on this node; answer StoreAt.
struct HostStore {
  EpochId epoch;
  int restart_count = 0;
};

using Told = std::variant<Command, Commit, LookClosely, HostStore>;

}  // namespace lockstep::control
