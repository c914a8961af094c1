// The simulated half of a simulation: machines with an agent each, their workers, and the checkpoints in their memory.
// A machine is known by its index for good; which node of the job it is, or whether it is one, changes with the world.
// Only the simulation includes this; simulation_cluster.cc has the agents, simulation_workers.cc, simulation_keepers.cc
// (peer memory), simulation_probes.cc and simulation_worlds.cc what their names say.
//
// The rule by which a rank gives up a checkpoint: a slot may be written if it is empty, or older than the newest
// checkpoint known to be whole on all nodes, or left over from an older epoch and not the one to restore. So what a
// node once said it holds stays true until a newer one is whole everywhere.
#pragma once

#include <fmt/format.h>

#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/control/fleet.h"
#include "lockstep/control/simulation.h"
#include "lockstep/control/simulation_running.h"
#include "lockstep/control/simulation_schedule.h"

namespace lockstep::control {

inline constexpr int kMany = 128;  // nodes, of which some are always late with their news

inline std::string PointName(const std::optional<CheckpointId>& point) {
  return point ? fmt::format("epoch {} step {}", point->epoch.value(), point->step) : "none";
}

// What lies in a slot, and who wrote it: a rank of a world of so many.
struct Content {
  CheckpointId id;
  int rank = 0, ranks = 0;
};

struct Slot {
  CheckpointId id;  // what its header says; epoch 0 = empty
  Content content;  // what lies there
  bool done = false, corrupt = false;
  bool Whole() const { return done && !corrupt && content.id == id; }
};

// A checkpoint, or a node's part of it, that lies elsewhere: by rank of the node.
struct Part {
  KeptFor of;
  std::vector<Content> content;
  bool corrupt = false;
};

struct Rank {
  EpochId epoch;
  int64_t process = 0;  // grows with every start
  bool alive = false, hung = false, loaded = false;
  Nanos hung_since;
  int64_t step = -1;
  Nanos step_end, copied;  // copied: the copy under way ends then
  std::array<Slot, 2> slots;
};

struct Node {
  std::vector<Rank> ranks;
  EpochId epoch, published_for;
  bool dead = false;    // the machine itself
  bool out = false;     // of the job
  bool joined = false;  // after the job began
  std::string name, token;
  HeldAs place;                  // under which all that it holds was written; node -1: none yet
  std::optional<HeldAs> coming;  // from when it hears where the next epoch begins
  bool spawned = false, failed = false, stopped = false, spawn_fails = false;
  std::optional<CheckpointId> restore, committed;
  CheckpointId secured;        // the newest that its coordinator said to be committed: of each node a copy is kept
  std::optional<Part> loaded;  // from disk or a keeper, in answer to the newest question; no content: it stays on disk
  bool cuts = false;           // what its ranks restore is on disk, and they cut it anew
  int64_t dead_step = -1, meet_from = 0;
  std::vector<Part> keeps;         // of other nodes
  std::vector<CheckpointId> kept;  // by its keeper
  std::optional<LoopBegan> loop;
  EpochId looped;                       // the newest whose loop has begun here
  std::vector<EventBody> said;          // facts of the epoch, said again when its agent is back
  std::optional<Holding> holding_told;  // over this connection
  std::optional<CheckpointId> committed_told;
  int64_t step_told = -2;
  std::vector<Alerted> alerts;  // that stand; said again when its agent is back
  std::optional<Rung> spoiled;  // what finds that this machine is broken
  bool mute = false;            // it answers no probe
  // Of replays: spoiled, it makes its group fail or reports other bits, in each run or only in some.
  bool crashes = false, sometimes = false;
  uint64_t search = 0, replay = 0;      // replay: the newest run of that search
  std::optional<ReplayEnded> replayed;  // how that ended
  Nanos stuck_until;                    // its ranks do not end before
  Nanos leave_by;                       // and are not made to before
  std::set<std::string> code;           // of which it has a copy, by hash

  // A machine that is new here has seen no epoch.
  bool ComesNext(EpochId next) const { return epoch.value() == 0 || next.value() == epoch.value() + 1; }
};

// A checkpoint on the disk that all nodes share.
struct DiskCheckpoint {
  CheckpointId id;
  std::vector<bool> damaged;  // by node of the world that wrote it: what concerns its ranks
};

// How the states of a job's ranks are to each other: replicas by their tensors, by the script's word, or not at all;
// then the script may cut them anew for a world of another size, from disk.
enum class Alike { kNot, kByTensors, kBySaying, kCutAnew };

// Whether the script tells its steps: always, never, or long after its workers have begun.
enum class Telling { kSteps, kNone, kLate };

// How large the job may be; 0: it never changes.
struct Worlds {
  int least = 0, most = 0;
  Alike alike = Alike::kNot;
  bool AreReplicas() const { return alike == Alike::kByTensors || alike == Alike::kBySaying; }
};

class Cluster {
 public:
  using Say = std::function<void(int machine, Said said)>;
  Cluster(const SimulationPlan& plan, Worlds worlds, Telling telling, int64_t steps, Schedule& schedule, Chance& chance,
          Say say);

  // Earlier runs of the job had the epochs before this one, and left checkpoints on disk, or tried to.
  void FollowEarlierRuns(EpochId first);
  void Tell(int machine, const Told& told);
  // The agent is in reach again, or its place is another one: it says all that it knows.
  void Welcome(int machine, const HeldAs& place);

  // Faults. False: there was nothing to break.
  bool Crash(int machine, int rank);
  bool Hang(int machine, int rank);
  bool Corrupt(int machine, int rank);
  void FailNextSpawn(int machine) { nodes_[At(machine)].spawn_fails = true; }
  // For good, with its agent, ranks and checkpoints. False: none of its ranks was at work.
  bool Die(int machine);
  // Its inspection says so; and its ranks do not end for so long.
  void Alert(int machine, AlertClass kind, const std::string& item, Seconds stuck);
  void ClearSoon(int machine, const std::string& item, Seconds delay);
  // Its ranks crash for a reason that only this probe finds.
  void Spoil(int machine, Rung found_by);

  // ---- the world, as whoever leads has it

  // A coordinator took over, and knows these nodes.
  void Know(const std::vector<NodeSpec>& nodes);
  // Another machine has the place of this node from now on, and holds nothing yet.
  void Seat(int node, const NodeSpec& standby);
  // The machine has no place any more: its ranks end. What it still says is not heard.
  void Expel(int machine);
  // Nodes count anew, by their old numbers; -1: it joins.
  void Resize(const std::vector<int>& from, const std::vector<NodeSpec>& nodes);
  int machines() const { return static_cast<int>(nodes_.size()); }
  int nodes() const { return static_cast<int>(world_.size()); }
  int MachineAt(int node) const { return world_[At(node)]; }
  // -1: it is none.
  int NodeOf(int machine) const { return nodes_[At(machine)].out ? -1 : node_of_[At(machine)]; }

  // From now on nothing disturbs: checkpoints must go on becoming whole.
  void Settle() { settled_ = schedule_.now(); }
  void Disturb() { settled_.reset(); }

  const std::string& NameOf(int machine) const { return nodes_[At(machine)].name; }
  const std::string& TokenOf(int machine) const { return nodes_[At(machine)].token; }
  // That ever had a place; -1: none did.
  int MachineOf(const std::string& token) const;
  bool IsDead(int machine) const { return nodes_[At(machine)].dead; }
  bool HasRanks(int machine) const;
  // Its ranks can't be ended yet, or have not had their time to leave: the order reached them late.
  bool MayRunOn(int machine) const;
  // When a rank of this machine last finished a step.
  Nanos SteppedAt(int machine) const;
  // The newest checkpoint in memory from which the coming epoch can begin; unknown once a fault spoilt some.
  bool IsSpoilt() const { return corrupted_; }
  const std::optional<CheckpointId>& newest_whole() const { return newest_whole_; }
  // Nothing of the world is lost, and any of its ranks could go on with the state of any other.
  bool IsThereAndAlike() const;
  static bool IsDamagedFor(const DiskCheckpoint& checkpoint, const HeldAs& place, bool cut);
  bool CutsAnew() const { return worlds_.alike == Alike::kCutAnew; }

  // The first promise that was broken; empty while all hold.
  const std::string& broken() const { return broken_; }
  // What broke by itself, as a consequence of a fault, and is repaired by a restart of its own.
  int own_causes() const { return own_causes_; }

 private:
  static size_t At(int index) { return static_cast<size_t>(index); }
  int Global(int machine, int rank) const { return nodes_[At(machine)].place.node * plan_.ranks_per_node + rank; }
  int Ranks(int machine) const { return nodes_[At(machine)].place.nodes * plan_.ranks_per_node; }
  int Add(const NodeSpec& spec);
  int Join(const NodeSpec& spec);
  template <typename Visit>
  void ForEachRank(const Visit& visit);
  // After its ranks have started or left, or what they began from or its place has changed.
  void NoteRunning(int machine);
  void CheckEpochs(int index);
  // After the world has changed.
  void CountThrough();
  void Break(std::string promise);

  void Do(int node, const Spawn& command);
  void Do(int node, const KillEpoch& command);
  void Do(int node, const KeepStacks& command);
  void Do(int node, const Probe& command);
  void Do(int node, const ReplayRun& run);
  void Do(int node, const ReplayStop& stop);
  void Do(int node, const KeepCode& command);
  void Do(int node, const ChooseRestore& command);
  void Do(int node, const ChooseOnDisk& question);
  void Do(int node, const FetchKept& question);
  void Do(int node, const PublishRestore& command);
  void Do(int node, const Commit& commit);
  void Do(int node, const HostStore& wish);
  template <typename Other>
  void Do(int, const Other&) {}  // the coordinator's own

  // A fact of an epoch. An agent keeps those of the newest, and says them again.
  void Remember(int node, EpochId epoch, const EventBody& fact);
  void SayNow(int node, Said said);
  void SayReady(int node, const Probe& probe);
  ReplayEnded Replayed(int node, const ReplayRun& run);
  void Answer(int node, const ReplayEnded& ended);
  void SayHangs(int node);
  void SayAlert(int index, Alerted alert);
  void AskToLeave(int node, Seconds grace);
  void EndEpoch(int node, EpochId epoch, Nanos deadline);

  void Start(int node);
  void Started(int node, EpochId epoch);
  void Load(int node, int rank, int64_t process);
  // False: it can't, and has left.
  bool Restore(int node, int rank, const CheckpointId& point);
  void Leave(int node, int rank, ExitStatus status, bool connection = false);
  void LeaveUnseen(int node, int rank);
  void SurvivorsMayNotice(int node, int rank);
  void Tick(int node);

  bool CanStep() const;
  void TryStep();
  void FinishStep(int node, int rank, int64_t process);
  void Save(int node, int rank);
  bool Writable(const Node& node, const Rank& rank, const Slot& slot) const;
  Holding HoldingOf(const Node& node) const;
  // verified: their CRCs were looked at, which happens before a restart only.
  std::vector<CheckpointId> Points(const Node& node, bool verified = true) const;
  static bool HasWhole(const Node& node, const CheckpointId& point);
  bool AllHaveWhole(const CheckpointId& point);
  void SendToKeeper(int node);
  void GiveUpKept(Node& node) const;
  bool CanGather(const CheckpointId& point, bool from_keepers) const;
  void NoteWhatIsLeft();
  std::optional<CheckpointId> MustOutlive(const std::set<int>& lost) const;
  void CheckLeft(const std::optional<CheckpointId>& must);
  Progress ProgressOf(const Node& node) const;
  void NoteCommitted();
  void PutOnDisk(const CheckpointId& id);
  void Answer(int index, RestoreFound found, Seconds delay);
  std::vector<Content> ContentOf(const Node& node, const CheckpointId& point) const;
  Replica ReplicaOf(const Part& part, bool own) const;
  void TakeNextPlace(Node& node, const std::optional<CheckpointId>& point);
  int KeeperOf(const Node& node) const;
  bool IsKnownWorld() const;
  bool CanTake(const CheckpointId& point) const;
  bool HasPart(const Node& node, int of, const CheckpointId& point) const;
  void CheckWorld(int index);

  const SimulationPlan plan_;
  const Worlds worlds_;
  const Telling telling_;
  const int64_t steps_;
  Schedule& schedule_;
  Chance& chance_;
  Say say_;
  std::vector<Node> nodes_;   // by machine
  std::vector<int> world_;    // by node: which machine it is
  std::vector<int> node_of_;  // by machine; -1: none
  Running running_;
  size_t lacking_ = 0;  // the node that was found last not to have the newest checkpoint whole: looked at first
  bool stepping_ = false;
  std::optional<CheckpointId> newest_whole_;  // that ever lay whole on all ranks
  bool corrupted_ = false;                    // a fault spoilt a checkpoint: an older one will do
  std::vector<DiskCheckpoint> disk_;          // oldest first
  int own_causes_ = 0;
  std::optional<Nanos> settled_;
  Nanos progressed_;  // when a checkpoint last became whole, or an epoch began
  std::string broken_;
};

}  // namespace lockstep::control
