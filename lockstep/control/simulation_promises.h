// What must hold in every run of a simulation, whatever breaks. Knows the orders that were given and the faults that
// were made, and judges the coordinator's state by them. Only the simulation includes this.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "lockstep/control/machine.h"
#include "lockstep/control/simulation_cluster.h"

namespace lockstep::control {

// "epoch_spawned of epoch 2"
std::string EventText(const EventBody& body);

class Promises {
 public:
  Promises(const Schedule& schedule, const Cluster& cluster) : schedule_(schedule), cluster_(cluster) {}

  // The job was asked for.
  void Begin(const JobSpec& spec, int max_restarts);
  // Whatever makes a restart right.
  void AddCause() { ++causes_; }
  // A node died, or it ended itself, with ranks that were at work.
  void LoseRanks(const State& state);
  // A standby took the place of a node.
  void Replace(bool was_dead) {
    ++causes_;
    ranks_lost_ = ranks_lost_ && !was_dead;
  }
  // There is reason enough to evict this machine, by its token.
  void Accuse(const std::string& token) { accused_.insert(token); }
  // Of those that are lost it is the one whose ranks have ended: it is taken for lost before any other.
  void LoseFirst(const std::string& token) { lost_first_ = token; }
  // A replay may name it; no other one.
  void Spoil(const std::string& token) { spoiled_.insert(token); }
  // Somebody asked for a stop a second time: ranks need not be given the time to leave.
  void BeImpatient() { impatient_ = true; }
  // The coordinator is about to hear this.
  void Hear(const State& before, const EventBody& body);
  // It has asked for this.
  void Ask(const State& state, const Command& command);
  // It was killed before all that it heard was written down, and another one took over.
  void Forget(const State& resumed);
  // Another one took over: who stood by may come anew after the world is settled.
  void TakeOver() {
    growth_.reset();
    world_checked_.reset();
    unfit_.clear();
  }
  // Some agent is out of reach, or the coordinator is away: whatever goes on may take longer.
  void Excuse() { excused_at_ = schedule_.now(); }

  // After each event; news: the state may be another one than before.
  void Check(const State& state, bool news);
  void CheckEnd(const State& state);
  void Break(const std::string& promise);
  // The first one that was broken, and when; empty while all hold.
  const std::string& broken() const { return broken_; }

 private:
  // That the job should end, and how.
  struct Order {
    int status = 0;
    Nanos at;
    Seconds grace;
  };

  // A restart in order to grow.
  struct Growth {
    EpochId epoch;
    size_t nodes = 0, evictions = 0;
    std::set<std::string> waited;  // by token
  };

  int causes() const { return causes_ + cluster_.own_causes(); }
  void HearOfStandby(const EventBody& body);
  void CheckWhoComes(const State& state, const Command& command);
  void HearUnfit(const State& before, const RestoreChosen& chosen);
  void BeginGrowth(const State& before);
  void CheckGrowth(const State& state);
  void CheckState(const State& state);
  void CheckWorld(const State& state);
  void CheckEvictions(const State& state);
  void CheckStatus(const State& state);
  void CheckLedger(const State& state);
  void CheckIncident(const State& state, const incident::Incident& incident, int64_t lost);

  const Schedule& schedule_;
  const Cluster& cluster_;
  JobSpec spec_;
  Nanos started_, excused_at_;
  std::optional<Order> order_;
  std::optional<Growth> growth_;
  bool ranks_lost_ = false, impatient_ = false;
  int max_restarts_ = 0, causes_ = 0;
  std::set<std::string> accused_, spoiled_;
  std::string lost_first_;       // by token; empty: whoever
  std::set<std::string> unfit_;  // standbys that said so, by token
  std::string leader_;           // by token; empty: none
  size_t evictions_ = 0;         // looked at
  // What changes with the world: looked at again when it does.
  using WorldSizes = std::tuple<size_t, size_t, size_t, size_t, int, EpochId>;
  std::optional<WorldSizes> world_checked_;
  std::optional<Nanos> waits_since_;  // for the ranks of a node that is to be evicted
  std::string broken_;
};

}  // namespace lockstep::control
