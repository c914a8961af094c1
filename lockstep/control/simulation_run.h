// One run of a simulation: the coordinator's process, what breaks, and who takes part. Only simulation.cc (how a job
// begins, and what must hold), simulation_coordinator.cc, simulation_machines.cc and simulation_faults.cc include this.
#pragma once

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/control/coordinator.h"
#include "lockstep/control/memory_journal.h"
#include "lockstep/control/replay_lead.h"
#include "lockstep/control/simulation_cluster.h"
#include "lockstep/control/simulation_network.h"
#include "lockstep/control/simulation_promises.h"

namespace lockstep::control {

// By chances of their own: without them all else stays as it is.
Chance WorldsChance(const SimulationPlan& plan);
Worlds WorldsOf(const SimulationPlan& plan);
Telling TellingOf(const SimulationPlan& plan);

class Simulation {
 public:
  explicit Simulation(const SimulationPlan& plan);
  SimulationResult Run();

 private:
  // What the coordinator knows of an agent.
  struct Attendant {
    bool attends = false;  // it has said all that it knows
    bool asked_stop = false;
    bool gone = false;
    Nanos lost_since{};  // 0: it is not lost
  };

  // ---- simulation.cc: how a job begins, and what must hold
  void Begin();
  Policy SomePolicy();
  void LetTheWorldChange(JobSpec& spec);
  void Check();
  void CheckEnd();
  bool EverybodyIsHere();
  bool IsAbsent(int node) const { return !Of(node).attends && !Of(node).gone; }
  bool AwaitsOthers();
  bool IsAwaited(int node) const;

  // ---- simulation_coordinator.cc: the network
  void Up(int machine, Said said);
  // An agent that does not attend is told what is pending when it does.
  void Down(int node, const Told& told);
  void DownAll(const Told& told);
  void Send(int node, const std::shared_ptr<const Told>& told);
  void Joined(int machine);
  void Welcome(int node);
  void Lost(int machine, const std::string& why);

  // ---- the coordinator hears
  void Hear(int node, const EventBody& said);
  void Hear(int node, const RestoreFound& found);
  void Hear(int node, const KeepsAt& where) { fleet_->Hear(node, where); }
  void Hear(int node, const Holding& holding);
  void Hear(int node, const Samples& samples) { fleet_->Hear(node, samples); }
  void Hear(int node, const ReplayReady& ready) { replay_->Hear(node, ready, schedule_.now()); }
  void Hear(int node, const ReplayEnded& ended) { replay_->Hear(node, ended, schedule_.now()); }
  void Hear(int node, const AllSaid& said);
  // Simulated ranks have no collectors, nor stacks, nor do they write to disk by themselves.
  template <typename Other>
  void Hear(int, const Other&) {}
  void HearStop(int node);
  void HearLater(const std::vector<EventBody>& events) { later_.insert(later_.end(), events.begin(), events.end()); }
  std::vector<EventBody> Filtered(int node, EventBody said);

  // ---- and decides
  void Handle(const EventBody& body);
  bool IsSwallowed(const EventBody& body) const;
  bool DiesInTheMiddle(const std::vector<Command>& commands);
  void Carry(const std::vector<Command>& commands);
  void CarryEach(const std::vector<Command>& commands);
  void AwaitStop(const WaitForStop& stop);
  void LookForTheStuck(EpochId epoch);
  void Ask(const Probe& probe);
  void LookAtReplay(Nanos asked);
  void AnswerReplay(Probed answer);
  std::string NameOfNext(const std::string& name) const;
  void EndProbe(const Probe& probe);
  std::string ModeText() const;
  void NoteTransition(const std::string& was);

  // ---- its process
  void BeginToListen(EpochId epoch);
  void MakeFleet(EpochId epoch, bool in_loop);
  void KillCoordinator();
  void ResumeCoordinator(bool forgets);

  // ---- simulation_machines.cc: who takes part
  void StandbysCome(double within);
  void StandbyComes(const std::string& name);
  void StandbyLeaves(const std::string& name);
  bool HasRoom() const;
  void AskForMachines();
  void GrowIfDue();
  void LookForTheGone();
  void LookForTheUnseen();
  void TakeForGone(int node);
  void Seat(int node, const NodeSpec& standby);
  void Vacate(int node);
  void Resize(const std::vector<int>& from);
  void KnowMachines();
  void ConnectSoon(int machine);

  // ---- simulation_faults.cc: what breaks, and what users ask for
  void PlanFaults();
  void PlanUpdates();
  void PlanWorlds();
  void BreakSomething();
  void Accuse(int machine);
  void AccuseMachine(int machine);
  void DisturbNetwork(int machine);
  void BreakNetwork(int machine);
  void Spoil(int machine, int rank);
  void Count(bool broken);
  void Crash(int machine, int rank);
  void Cut(int machine, Seconds duration);
  void FillDisk(int machine, int rank);
  void EmptyDisk();
  void Corrupt(int machine, int rank);
  void Heal();
  void LoseANode();
  void EndIfAlone(int machine, Nanos since);
  void TroubleWhileCounting();
  void AskForUpdate(const UpdateAsked& asked);
  void AskStop();
  void AskStopUntilItEnds();
  void AskStopAt(int node, Seconds delay);

  const Attendant& Of(int node) const { return attendants_[static_cast<size_t>(cluster_.MachineAt(node))]; }
  Attendant& Change(int node);
  int SomeNode() { return chance_.Below(cluster_.nodes()); }
  std::string NameOf(int node) const { return cluster_.NameOf(cluster_.MachineAt(node)); }
  const State& state() const { return coordinator_ ? coordinator_->state() : last_state_; }

  template <typename... Values>
  void Tell(fmt::format_string<Values...> text, Values&&... values) {
    if (plan_.story)
      result_.story.push_back(fmt::format("{:8.3f} s  {}", ToSeconds(schedule_.now()).value,
                                          fmt::format(text, std::forward<Values>(values)...)));
  }

  const SimulationPlan plan_;
  Schedule schedule_;
  Chance chance_, counting_;
  VirtualClock clock_;
  MemoryJournal disk_;
  Network network_;
  Cluster cluster_;
  Promises promises_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Fleet> fleet_;
  std::optional<ReplayLead> replay_;
  Nanos replay_asked_;
  std::vector<Attendant> attendants_;  // by machine
  std::vector<EventBody> later_;       // heard when all commands are carried out
  State last_state_;                   // while there is no coordinator
  Nanos newest_step_end_, advanced_at_;
  int machines_asked_ = 0, machines_came_ = 0;  // asked: and not come yet
  EpochId stuck_for_;                           // of which ranks were waited for long enough
  uint64_t stop_waits_ = 0;                     // that were begun: the newest counts
  std::map<std::string, int> network_alerts_;   // by token
  bool finished_ = false, node_lost_ = false, stop_asked_ = false;
  // Of many nodes not every event may cost a look at all.
  bool news_ = true;              // something that Check() looks at may have changed since it did
  bool excused_ = true;           // as it found then: somebody is not here, or waited for
  std::optional<bool> here_;      // whether everybody is; not known after a change
  int absent_ = 0, awaited_ = 0;  // who was found so last: looked at first
  SimulationResult result_;
};

}  // namespace lockstep::control
