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
#include "lockstep/trace/trail_file.h"

namespace lockstep::control {

// ---- an agent says

// The checkpoints that are whole on all ranks of a node, and kept by another one, if any can.
struct Holding {
  EpochId epoch;  // that acts there
  std::vector<CheckpointId> points;
  std::vector<CheckpointId> coming{};  // of that epoch: those that may yet become so
  int64_t passed = -1;                 // every rank has saved or skipped this step
  bool operator==(const Holding&) const = default;
};
// A checkpoint of another node's ranks that an agent keeps in its memory (lockstep/keep).
struct KeptFor {
  int node = 0;
  CheckpointId point;
  bool operator==(const KeptFor&) const = default;
};
// The tensors of all ranks of a node in a checkpoint are one and the same, and this is their hash: those of another
// node with this one are replicas.
struct Replica {
  int node = 0;
  CheckpointId point;
  uint64_t low = 0, high = 0;
  bool operator==(const Replica&) const = default;
};
// Of a script that says so of its ranks, whatever their tensors are: that they are replicas, or that it cuts them anew
// for a world of another size, from the disk.
inline constexpr uint64_t kSaidToBeReplica = ~uint64_t{0}, kSaidToBeCut = ~uint64_t{0} - 1;
// A place of an agent: that which it had when what it holds, and keeps for others, was written, or another.
struct HeldAs {
  int node = -1, nodes = 0;  // -1: none
  bool operator==(const HeldAs&) const = default;
};
// An agent's answer to ChooseRestore: those in memory whose CRCs it has verified, what it keeps for others, and what it
// found damaged. To FetchKept and ChooseOnDisk: at most one, or why the newest on disk is of no use to this world.
struct RestoreFound {
  EpochId epoch;  // the coming one
  std::vector<CheckpointId> points;
  std::vector<std::string> rejected;
  std::optional<CheckpointId> not_above{};  // of the question, if it was ChooseOnDisk
  std::vector<KeptFor> kept{};
  std::optional<CheckpointId> fetched{};  // of the question, if it was FetchKept
  HeldAs held{};                          // nodes 0: as it stands now
  std::string unfit{};  // what is on disk is of another world or can't be read, or no worker can be started here: why
  HeldAs as{};          // for which place it answers: of the world to come; nodes 0: not said
  std::vector<Replica> replicas{};  // of its own and of those that it keeps
};
// Where this agent takes in what other nodes want kept, and where its tests would hear the node before it in a ring.
struct KeepsAt {
  std::string host;
  int port = 0;
  int ring_port = 0;         // 0: none
  bool writes_parts = true;  // of those that it keeps for: WritePart's wards; false: it is of a release before those
};
// A rank whose loss is no finite number any more.
struct BadLoss {
  RankId rank;
  int64_t from = -1;        // its newest step whose loss was finite: what was saved after it may be bad; -1: well again
  int64_t seen_since = -1;  // no loss was finite that was looked at from this step on
  int64_t step = -1;        // its newest
  EpochId epoch{};          // in which it had the finite one
  bool operator==(const BadLoss&) const = default;
};
// What the ranks of a node look like now.
struct Samples {
  EpochId epoch;
  std::vector<detect::RankSample> ranks;
  std::vector<detect::StackSample> stacks;
  Progress progress;  // of the slowest of them
  std::vector<BadLoss> losses{};
};
// What collectors in the ranks of a node noted of their communication: a sample of what ended lately.
struct CommunicationSeen {
  EpochId epoch;
  std::vector<trace::TrailSnapshot> trails;
};
// What KeepStacks found on a node, as docs/formats/stacks.md has it; comes before StacksKept. Of a job of so many ranks
// that the coordinator would be long at it, agents only keep it.
struct StacksSeen {
  EpochId epoch;
  std::string text;
};
inline constexpr int kMostRanksOfStacksSeen = 20'000;
inline constexpr size_t kMostBytesOfStacksSeen = 1 << 20;  // of a node
// Answer to HostStore.
struct StoreAt {
  EpochId epoch;
  std::string host;
  int port = 0;
  bool hosted = true;  // false: there is no torch to host it with; rank 0 binds the port itself
};
// Of node 0: the newest checkpoint should go to disk; here is the one it knows of.
struct FlushWanted {
  CheckpointId point;
};
// Answer to WritePart, passed on to node 0.
struct PartWritten {
  CheckpointId point;
  int node = 0;
  std::string error;  // empty: it is written
  bool gone = false;  // nothing is written: the ranks had given it up already, for a newer one
  std::string files;  // a part of the manifest, as checkpoint::FilesText has it
};
// Of node 0, once the job is over, passed on to all: nothing more goes to disk.
struct DiskDone {};
// Answer to Probe of a search by replay: whether this node takes part, and where ranks could meet on it. Said again
// when it is asked again, with the run that it is in.
struct ReplayReady {
  uint64_t search = 0;
  std::string host{};
  int port = 0;
  std::vector<int> opted_in{};  // versions of the script that ran here and call lockstep.replay()
  std::string processor{};      // nodes of one kind compute the same bits
  uint64_t run = 0;             // that it is in, or has answered last; 0: none
  std::string error{};          // why it can't take part; empty: it can
};
// Answer to ReplayRun: all ranks of this node have ended.
struct ReplayEnded {
  uint64_t search = 0, run = 0;
  std::string trouble{};               // of the first rank that did not end well; empty: none
  Nanos troubled_at{};                 // 0: not
  bool port_taken = false;             // the trouble: somebody else listens where the ranks were to meet
  std::string error{};                 // no run came about, which says nothing of the machine
  std::vector<std::string> reports{};  // of its ranks, as python/lockstep/_replay.py writes them
  int port = 0;                        // the next one where ranks could meet
};
// The end of what an agent that is new, or back, has to say.
struct AllSaid {
  EpochId epoch;  // the newest that it ever was told of; 0: none
};

using Said = std::variant<EventBody, Holding, RestoreFound, Samples, CommunicationSeen, StacksSeen, StoreAt, Observed,
                          KeepsAt, FlushWanted, PartWritten, DiskDone, ReplayReady, ReplayEnded, AllSaid>;

// ---- an agent is told

// This checkpoint is whole on all nodes: ranks may give up what is older. Of this epoch no other one up to dead_step
// can become so any more. Nor could any before meet_from, where the job stood when the last agent that was away came
// back.
struct Commit {
  EpochId epoch;
  CheckpointId point;  // epoch 0: none
  int64_t dead_step = -1;
  int64_t meet_from = 0;
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

// From now on this node keeps what is whole on your ranks: send it there.
struct KeepWith {
  std::string name;  // of the node
  std::string host;
  int port = 0;
};
// The others have this checkpoint in memory, you have not, but there is a copy of your part here: fetch it; answer
// RestoreFound.
struct FetchKept {
  EpochId next;
  CheckpointId point;
  std::string host;
  int port = 0;
  int part = -1;  // of which node: a replica of yours; -1: your own
};
// No checkpoint in memory is whole on all nodes. Load the newest from disk that is not above this one and whole for
// your ranks; answer RestoreFound. Asked again with a lower bound until all find the same.
struct ChooseOnDisk {
  EpochId next;
  CheckpointId not_above;
  bool operator==(const ChooseOnDisk&) const = default;
};
// A node of a job that is over which is out of reach, or has no part of a checkpoint, and its first rank.
struct Ward {
  int node = 0, first_rank = 0;
  std::string name{};
  bool operator==(const Ward&) const = default;
};
// Write what your ranks hold of this checkpoint, which is whole on all nodes, to disk, and what you keep of it for
// these; answer PartWritten for each.
struct WritePart {
  CheckpointId point;
  std::vector<Ward> wards{};
  bool operator==(const WritePart&) const = default;
};

// Run your ranks of a group of nodes that replays some steps together: a torch.distributed world of its own. Answer
// ReplayEnded. Asked the same again, the run goes on.
struct ReplayRun {
  uint64_t search = 0, run = 0;
  int64_t incident = 0;    // whose folder has what the ranks print
  bool own_script = true;  // the job's; false: lockstep/_replay_model.py
  Version version{};       // of the script
  std::vector<int> nodes{};
  int index = 0;                  // of this node, among them
  int first_rank = 0, ranks = 1;  // this node's first one, and all of the group
  std::string master_host{};
  int master_port = 0;
  Seconds deadline{};         // from when the ranks run, kUntilRanksRun at most after this was said
  int layers = 4, steps = 3;  // what the script is asked to shrink to
};
inline constexpr Seconds kUntilRanksRun{180};  // torch is imported first

// The run is over for you, whatever it does; answer ReplayEnded. 0: so is the search, and nothing is to be answered.
struct ReplayStop {
  uint64_t search = 0, run = 0;
};

using Told = std::variant<Command, Commit, LookClosely, HostStore, KeepWith, FetchKept, ChooseOnDisk, WritePart,
                          PartWritten, DiskDone, ReplayRun, ReplayStop>;

}  // namespace lockstep::control
