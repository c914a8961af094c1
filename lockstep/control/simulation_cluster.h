// The simulated half of a simulation: nodes with an agent each, their workers, and the checkpoints in their memory.
// Only simulation.cc, simulation_cluster.cc, simulation_keepers.cc (peer memory) and simulation_probes.cc include this.
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
#include "lockstep/control/simulation_schedule.h"

namespace lockstep::control {

inline constexpr int kMany = 128;  // nodes, of which some are always late with their news

inline std::string PointName(const std::optional<CheckpointId>& point) {
  return point ? fmt::format("epoch {} step {}", point->epoch.value(), point->step) : "none";
}

struct Slot {
  CheckpointId id;       // what its header says; epoch 0 = empty
  CheckpointId content;  // what lies there
  bool done = false, corrupt = false;
  bool Whole() const { return done && !corrupt && content == id; }
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
  bool dead = false;  // the machine itself
  int machine = 0;    // how many had this place before
  bool spawned = false, failed = false, stopped = false, spawn_fails = false;
  std::optional<CheckpointId> restore, committed;
  std::optional<CheckpointId> loaded;  // from disk, in answer to the newest question
  int64_t dead_step = -1;
  std::vector<KeptFor> keeps;      // of other nodes
  std::vector<CheckpointId> kept;  // by its keeper
  std::optional<LoopBegan> loop;
  std::vector<EventBody> said;          // facts of the epoch, said again when its agent is back
  std::optional<Holding> holding_told;  // over this connection
  int64_t step_told = -2;
  std::string name;
  std::vector<Alerted> alerts;  // that stand; said again when its agent is back
  std::optional<Rung> spoiled;  // what finds that this machine is broken
  bool mute = false;            // it answers no probe
  // Of replays: spoiled, it makes its group fail or reports other bits, in each run or only in some.
  bool crashes = false, sometimes = false;
  uint64_t search = 0, replay = 0;      // replay: the newest run of that search
  std::optional<ReplayEnded> replayed;  // how that ended
  Nanos stuck_until;                    // its ranks do not end before
  std::set<std::string> code;           // of which it has a copy, by hash

  // A machine that is new here has seen no epoch.
  bool ComesNext(EpochId next) const { return epoch.value() == 0 || next.value() == epoch.value() + 1; }
};

// A checkpoint on the disk that all nodes share.
struct DiskCheckpoint {
  CheckpointId id;
  std::vector<bool> damaged;  // by node: what concerns its ranks
};

class Cluster {
 public:
  using Say = std::function<void(int node, Said said)>;
  Cluster(const SimulationPlan& plan, int64_t steps, Schedule& schedule, Chance& chance, Say say);

  // Earlier runs of the job had the epochs before this one, and left checkpoints on disk, or tried to.
  void FollowEarlierRuns(EpochId first);
  void Tell(int node, const Told& told);
  // The agent is in reach again: it says all that it knows.
  void Reconnect(int node);

  // Faults. False: there was nothing to break.
  bool Crash(int node, int rank);
  bool Hang(int node, int rank);
  bool Corrupt(int node, int rank);
  void FailNextSpawn(int node) { nodes_[At(node)].spawn_fails = true; }
  // For good, with its agent, ranks and checkpoints. False: none of its ranks was at work.
  bool Die(int node);
  // Another machine has this place from now on, and holds nothing yet. Whatever the one before still says is not heard.
  void Replace(int node, const std::string& name);
  // Its inspection says so; and its ranks do not end for so long.
  void Alert(int node, AlertClass kind, const std::string& item, Seconds stuck);
  void ClearSoon(int node, const std::string& item, Seconds delay);
  // Its ranks crash for a reason that only this probe finds.
  void Spoil(int node, Rung found_by);

  // From now on nothing disturbs: checkpoints must go on becoming whole.
  void Settle() { settled_ = schedule_.now(); }

  int machine(int node) const { return nodes_[At(node)].machine; }
  bool IsDead(int node) const { return nodes_[At(node)].dead; }
  bool HasRanks(int node) const;
  // When a rank of this node last finished a step.
  Nanos SteppedAt(int node) const;

  // Who keeps whose checkpoints in its memory.
  int KeeperOf(int node) const { return (node + 1) % plan_.nodes; }

  // The first promise that was broken; empty while all hold.
  const std::string& broken() const { return broken_; }
  // What broke by itself, as a consequence of a fault, and is repaired by a restart of its own.
  int own_causes() const { return own_causes_; }

 private:
  static size_t At(int index) { return static_cast<size_t>(index); }
  int Global(int node, int rank) const { return node * plan_.ranks_per_node + rank; }
  template <typename Visit>
  void ForEachRank(const Visit& visit);
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
  template <typename Other>
  void Do(int, const Other&) {}  // the coordinator's own

  // A fact of an epoch. An agent keeps those of the newest, and says them again.
  void Remember(int node, EpochId epoch, const EventBody& fact);
  void SayNow(int node, Said said);
  void SaySoon(int node, Seconds delay, const Said& said);
  void SayReady(int node, const Probe& probe);
  ReplayEnded Replayed(int node, const ReplayRun& run);
  void Answer(int node, const ReplayEnded& ended);
  void SayHangs(int node);
  void AskToLeave(int node, Seconds grace);
  void EndEpoch(int node, EpochId epoch, Nanos deadline);

  void Start(int node);
  void Started(int node, EpochId epoch);
  void Load(int node, int rank, int64_t process);
  // False: it can't, and has left.
  bool Restore(int node, int rank, const CheckpointId& point);
  void Leave(int node, int rank, ExitStatus status, bool connection = false);
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
  void SendToKeeper(int node);
  void GiveUpKept(Node& node) const;
  bool CanGather(const CheckpointId& point, int without) const;
  void NoteWhatIsLeft(int without);
  void CheckLoss(int index);
  Progress ProgressOf(const Node& node) const;
  void NoteCommitted();
  void PutOnDisk(const CheckpointId& id);

  const SimulationPlan plan_;
  const int64_t steps_;
  Schedule& schedule_;
  Chance& chance_;
  Say say_;
  std::vector<Node> nodes_;
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
