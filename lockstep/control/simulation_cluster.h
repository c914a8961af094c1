// The simulated half of a simulation: nodes with an agent each, their workers, and the checkpoints in their memory.
// Only simulation.cc and simulation_cluster.cc include this.
//
// The rule by which a rank gives up a checkpoint: a slot may be written if it is empty, or older than the newest
// checkpoint known to be whole on all nodes, or left over from an older epoch and not the one to restore. So what a
// node once said it holds stays true until a newer one is whole everywhere.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/control/fleet.h"
#include "lockstep/control/simulation.h"

namespace lockstep::control {

// Virtual time: things happen in order, and nothing takes time but what says so.
class Schedule {
 public:
  Nanos now() const { return now_; }
  void In(Seconds delay, std::function<void()> action) {
    queue_.push({now_ + ToNanos(delay), ++count_, std::move(action)});
  }
  // False: nothing is left to happen.
  bool Next() {
    if (queue_.empty()) return false;
    const Item next = queue_.top();
    queue_.pop();
    now_ = next.at;
    next.action();
    return true;
  }

 private:
  struct Item {
    Nanos at;
    int64_t order;
    std::function<void()> action;
    bool operator<(const Item& other) const { return std::tie(other.at, other.order) < std::tie(at, order); }
  };
  Nanos now_{1'000'000'000};
  int64_t count_ = 0;
  std::priority_queue<Item> queue_;
};

class Chance {
 public:
  explicit Chance(uint64_t seed) : engine_(seed) {}
  bool Hits(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  Seconds Between(double low, double high) { return Seconds{std::uniform_real_distribution(low, high)(engine_)}; }
  int Below(int limit) { return std::uniform_int_distribution(0, limit - 1)(engine_); }

 private:
  std::mt19937_64 engine_;
};

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
  bool spawned = false, stopped = false, spawn_fails = false;
  std::optional<CheckpointId> restore, committed;
  std::optional<CheckpointId> loaded;  // from disk, in answer to the newest question
  int64_t dead_step = -1;
  std::optional<LoopBegan> loop;
  std::optional<StacksKept> stacks;
  std::optional<SpawnFailed> failure;
  std::vector<RankExited> exits;
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

  void Tell(int node, const Told& told);
  // The agent is in reach again: it says all that it knows.
  void Reconnect(int node);

  // Faults. False: there was nothing to break.
  bool Crash(int node, int rank);
  bool Hang(int node, int rank);
  bool Corrupt(int node, int rank);
  void FailNextSpawn(int node) { nodes_[At(node)].spawn_fails = true; }

  // From now on nothing disturbs: checkpoints must go on becoming whole.
  void Settle() { settled_ = schedule_.now(); }

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
  void Do(int node, const ChooseRestore& command);
  void Do(int node, const ChooseOnDisk& question);
  void Do(int node, const PublishRestore& command);
  void Do(int node, const Commit& commit);
  template <typename Other>
  void Do(int, const Other&) {}  // the coordinator's own

  void Start(int node);
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
  Progress ProgressOf(const Node& node) const;
  void NoteCommitted();
  void Flush();

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
