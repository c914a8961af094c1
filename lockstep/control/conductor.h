// Leads a job: hears the agents of its nodes, has it decided what follows, and carries that out by telling them what to
// do. Knows who attends, what is waited for and until when, and what an agent that is back has missed. How it is
// decided and how words get to agents is the business of its surroundings: the coordinator's process (node/head.h), or
// a simulation of one (simulation.h). An agent that does not attend is told what is pending when it does.
// Thread-compatible. May be called by what it calls: an agent in the same process answers at once.
//
//   Conductor conductor(coordinator.state(), clock, {.decide = [&](const EventBody& body) { ... }, ...});
//   conductor.Begin(commands);                   // of JobStarted, or of Coordinator::Resume
//   conductor.Hear(node, said);  conductor.Lost(node, why);  conductor.Handle(StopAsked{SIGTERM});
//   conductor.Tick();                            // ten times a second
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/control/fleet.h"
#include "lockstep/control/replay_lead.h"

namespace lockstep::control {

// So long a restart for an update alone is put off while no checkpoint becomes whole: it would cost the steps since the
// last one.
inline constexpr Seconds kUntilWhole{10};
inline constexpr Seconds kToComeBack{2};  // an agent whose coordinator is there again

class Conductor {
 public:
  struct Listener {
    std::function<std::vector<Command>(const EventBody&)> decide;  // from then on the state is what it led to
    std::function<void(int node, const Told&)> tell;
    std::function<void(const Command&)> carried;  // out, as far as nodes and waits go; what else does it mean?
  };

  // Both must outlive the conductor.
  Conductor(const State& state, const Clock& clock, Listener listener);
  // What the state asks for where this coordinator begins to lead. No agent attends yet. Counts go on from those of the
  // conductor that led before in this process, if one did.
  void Begin(const std::vector<Command>& commands, const Conductor* before = nullptr);

  void Hear(int node, const Said& said);
  // Its agent is out of reach: nothing was heard of it for so long, or, without silence, its connection was closed.
  void Lost(int node, const std::string& why, Seconds silence = {});
  // The same, but it gave up this process, which was stopped, and comes anew soon: nobody is told. Lost, if it does
  // not.
  void LeftUs(int node);
  void Handle(const EventBody& body);
  void Tick();
  // This process itself was stopped for so long: who is lost had no chance to come back, and what is waited for may
  // have come, and is only heard now: the same holds of what comes to be waited for soon. Written down where a node is
  // awaited: that counts by the journal.
  void WasAway(Nanos away);
  void Tell(int node, const Told& told);
  void TellAll(const Told& told);

  const Fleet& fleet() const { return *fleet_; }
  int nodes() const { return static_cast<int>(nodes_.size()); }
  bool Attends(int node) const { return Of(node).standing == Standing::kAttends; }
  // It does not, and nothing of it is waited for any more.
  bool IsGone(int node) const { return Of(node).standing == Standing::kGone; }
  // How many do not, and may yet.
  int lost() const { return lost_; }
  // Their names, but that of this node.
  std::vector<std::string> LostBeside(int node) const;
  // Names of the nodes for which no checkpoint becomes whole: lost, or, of one that is about to, for long and while the
  // job stepped, those that don't say to hold it.
  std::vector<std::string> WaitsFor() const;
  // When the last of them counts as gone, if the job stands.
  Nanos GoneBy() const;
  // Since when the first of them has been lost; 0: none is.
  Nanos LostSince() const;
  // Of a job that trains on several nodes: an agent is away, or was, and since all are there no checkpoint has become
  // whole.
  bool IsUncommitted() const;
  const Observed& observed(int node) const { return Of(node).observed; }
  // Together() with this no count falls.
  const Observed& counted_before() const { return counted_before_; }
  // When that was said.
  Nanos observed_at(int node) const { return Of(node).observed_at; }
  std::string NameOf(int node) const;
  // Node 0 may be writing the last checkpoint.
  bool IsWriting() const { return !disk_done_ && Attends(0); }

 private:
  // Attends: its agent has said all that it knows.
  enum class Standing { kLost, kAttends, kGone };
  struct Node {
    Standing standing = Standing::kGone;
    Nanos since{};
    bool left_us = false;  // lost, and not said to be
    bool asked_stop = false;
    std::optional<CheckpointId> lacks{};  // of the last one that goes to disk
    std::string token{};                  // of whoever said what is observed
    Observed observed{};
    Nanos observed_at{};
  };
  struct Wait {
    EpochId epoch;
    Nanos until;
  };

  void Hear(int node, const EventBody& said);
  void Hear(int node, const RestoreFound& found);
  void Hear(int node, const Holding& holding);
  void Hear(int node, const Samples& samples);
  void Hear(int node, const KeepsAt& where);
  void Hear(int node, const StoreAt& store);
  void Hear(int node, const FlushWanted& wanted);
  void Hear(int node, const PartWritten& part);
  void Hear(int node, const DiskDone& done);
  void Hear(int node, const Observed& observed);
  void Hear(int node, const ReplayReady& ready) { replay_.Hear(node, ready, clock_.Now()); }
  void Hear(int node, const ReplayEnded& ended) { replay_.Hear(node, ended, clock_.Now()); }
  void Hear(int node, const AllSaid& said);
  template <typename OfTheJudge>
  void Hear(int, const OfTheJudge&) {}

  void Handle(const std::vector<EventBody>& events);
  void CarryOut(const std::vector<Command>& commands);
  void Carry(const Spawn& spawn) { TellSpawn(spawn, std::nullopt); }
  void Carry(const WaitForCulprit& wait) { culprit_ = WaitFor(wait.epoch, wait.at_most); }
  void Carry(const WaitForStop& wait);
  void Carry(const KillEpoch& kill);
  void Carry(const ChooseRestore& choose);
  void Carry(const Probe& probe);
  void Carry(const Seat& seat);
  void Carry(const Vacate& vacate);
  void Carry(const Resize& resize);
  void Carry(const Finish& finish);
  void Carry(const AskForNodes&) {}
  void Carry(const Announce&) {}
  void Carry(const KeepStacks& command) { TellAll(Command(command)); }
  void Carry(const PublishRestore& command) { TellAll(Command(command)); }
  void Carry(const KeepCode& command) { TellAll(Command(command)); }

  void CountOnFrom(const Conductor& before);
  std::string TokenOf(int node) const;
  Wait WaitFor(EpochId epoch, Seconds at_most) const;
  void EndWaits(Nanos now);
  void EndProbe(EpochId epoch);
  void StopIsOverdue(EpochId epoch);
  void LoseTheStuck();
  void SayWhoStayedAway(Nanos now);
  void SayLost(int node);
  Seconds StillAdvances() const;
  void LookForTheGone(Nanos now);
  std::optional<int> WhoHoldsTheJobUp() const;
  Unheard UnheardSince(int node) const { return control::UnheardSince(state_, node, Of(node).since); }
  void TakeForGone(int node, Nanos now);
  void UpdateIfDue(Nanos now);
  void GrowIfDue(Nanos now);

  void TellPending(int node, const Command& command);
  void TellSpawn(const Spawn& spawn, std::optional<int> only);
  void TellCommit();
  void TellKeeper(int node);
  Told Asked(int node, const Command& command) const { return fleet_->Asked(node, replay_.Asked(command)); }
  bool HasPart(int node, const CheckpointId& point) const { return Attends(node) && Of(node).lacks != point; }
  std::optional<int> WriterOf(int node, const CheckpointId& point) const;
  std::optional<std::vector<std::vector<Ward>>> ShareParts(const CheckpointId& point) const;
  void FlushIfAllIsThere();
  void GiveUpPart(int node);

  const Node& Of(int node) const { return nodes_[static_cast<size_t>(node)]; }
  Node& Of(int node) { return nodes_[static_cast<size_t>(node)]; }
  void Put(int node, Standing standing, Nanos since);
  void GoOnWithout(int node, Standing standing);
  void HearLater(const std::vector<EventBody>& events);

  const State& state_;
  const Clock& clock_;
  const Listener listener_;
  std::unique_ptr<Fleet> fleet_;
  ReplayLead replay_;
  std::vector<Node> nodes_;
  Observed counted_before_;  // by agents that count anew, or no more
  int lost_ = 0;
  std::optional<Wait> culprit_, stop_, stuck_, probe_;
  Nanos back_by_;    // agents have until then, since this process took over; 0: they have had their time
  Nanos caught_up_;  // no wait ends before: this process was stopped, and what came meanwhile has yet to be heard
  bool carrying_ = false;
  std::vector<EventBody> later_;              // what follows from commands that are being carried out
  std::optional<Spawn> spawn_;                // the newest
  std::optional<StoreAt> store_;              // of its epoch
  std::optional<CheckpointId> flush_wanted_;  // by node 0, which has no answer yet
  std::optional<CheckpointId> flushing_;      // that goes to disk, or went last
  bool disk_done_ = false;
  size_t holdings_ = 0;  // heard since the last look at all of them
  Nanos newest_step_end_, advanced_at_;
  std::optional<CheckpointId> pending_;  // at the last tick, and since when
  Nanos pending_since_;
};

}  // namespace lockstep::control
