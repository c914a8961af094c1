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

#include "lockstep/control/conductor.h"
#include "lockstep/control/coordinator.h"
#include "lockstep/control/memory_journal.h"
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
  // ---- simulation.cc: how a job begins, and what must hold
  void Begin();
  Policy SomePolicy();
  void LetTheWorldChange(JobSpec& spec);
  void LetAStandbyHelp(JobSpec& spec);
  void Check();
  void CheckEnd();
  bool EverybodyIsHere() const { return leads_ && conductor_->lost() == 0; }
  bool AwaitsOthers();

  // ---- simulation_coordinator.cc: the network
  void Up(int machine, Said said);
  void Down(int node, const Told& told);
  void Joined(int machine);
  void Welcome(int node);
  void Lost(int machine, const std::string& why, Seconds silence);

  // ---- the coordinator hears
  void Hear(int node, const Said& said);
  void Hear(int node, EventBody said);
  void HearStop(int node);

  // ---- and decides
  void Handle(const EventBody& body);
  std::vector<Command> Decide(EventBody body);
  void CheckStuck(const StopOverdue& overdue);
  void Mutate(EventBody& body) const;
  bool IsSwallowed(const EventBody& body) const;
  bool SomeAreAway() const;
  std::string NameOfNext(const std::string& name) const;
  bool DiesInTheMiddle(const std::vector<Command>& commands);
  void Carried(const Command& command);
  void LookForTheUnseen();
  std::string ModeText() const;
  void NoteTransition(const std::string& was);

  // ---- its process
  void Lead(const std::vector<Command>& commands);
  void Tick();
  void TickConductor();
  void AwaitJournal();
  void KillCoordinator();
  void StopCoordinator(Seconds duration);
  void ContinueCoordinator(Seconds away);
  void CheckPlaces();
  void ResumeCoordinator(bool forgets);

  // ---- simulation_machines.cc: who takes part
  void StandbysCome(double within);
  void StandbyComes(const std::string& name);
  void StandbyLeaves(const std::string& name);
  void StandbyFalters(const std::string& token);
  void StandbyRecovers(const std::string& token);
  void SayOfStandby(const std::string& token, bool cleared);
  void SayAsNode(int machine);
  bool HasRoom() const;
  void AskForMachines();
  void Seat(int node, const NodeSpec& standby);
  void Vacate(int node);
  void Resize(const std::vector<int>& from);
  void ConnectSoon(int machine);

  // ---- simulation_faults.cc: what breaks, and what users ask for
  void PlanFaults();
  void PlanUpdates();
  void PlanStop();
  void PlanReplay();
  void PlanWorlds();
  void PlanLostAgents();
  void BreakSomething();
  void Accuse(int machine);
  void AccuseMachine(int machine);
  void DisturbNetwork(int machine);
  void BreakNetwork(int machine);
  void Spoil(int machine, int rank);
  void CrashAgain(int machine, int times);
  void Count(bool broken);
  void Crash(int machine, int rank);
  void Cut(int machine, Seconds duration);
  void FallSilent(int machine, Seconds duration);
  void FillDisk(int machine, int rank);
  void EmptyDisk();
  void Corrupt(int machine, int rank);
  void Heal();
  void LoseANode();
  void Die(int machine);
  void EndIfAlone(int machine, Nanos since);
  void TroubleWhileCounting();
  void AskForUpdate(const UpdateAsked& asked);
  void AskStop();
  void AskStopUntilItEnds();
  void AskStopAt(int node, Seconds delay);

  int SomeNode() { return chance_.Below(cluster_.nodes()); }
  std::string NameOf(int node) const { return cluster_.NameOf(cluster_.MachineAt(node)); }
  const State& state() const { return coordinator_->state(); }

  template <typename... Values>
  void Tell(fmt::format_string<Values...> text, Values&&... values) {
    if (plan_.story)
      result_.story.push_back(fmt::format("{:8.3f} s  {}", ToSeconds(schedule_.now()).value,
                                          fmt::format(text, std::forward<Values>(values)...)));
  }

  const SimulationPlan plan_;
  Schedule schedule_;
  Chance chance_, counting_, faltering_;
  VirtualClock clock_;
  MemoryJournal disk_;
  Network network_;
  Cluster cluster_;
  Promises promises_;
  bool leads_ = false;  // else the coordinator's process is dead, and what follows is how it left things
  std::unique_ptr<Coordinator> coordinator_;
  std::optional<Conductor> conductor_;
  bool forgets_ = false;                          // a mutant tells an agent that is back nothing
  int machines_asked_ = 0, machines_came_ = 0;    // asked: and not come yet
  std::map<std::string, int> network_alerts_;     // by token
  std::map<std::string, Nanos> faltering_since_;  // machines that broke while they stood by, by token
  std::map<int, Nanos> killed_by_;                // when the newest order to kill its ranks is there, by machine
  std::optional<Seconds> stops_after_kill_;       // so long, when next it has had ranks killed
  Nanos caught_up_at_;                            // after it was stopped
  bool finished_ = false, node_lost_ = false, stop_asked_ = false;
  // Of many nodes not every event may cost a look at all.
  bool news_ = true;     // something that Check() looks at may have changed since it did
  bool excused_ = true;  // as it found then: somebody is not here, or waited for
  int awaited_ = 0;      // who was found so last: looked at first
  SimulationResult result_;
};

}  // namespace lockstep::control
