// The inside of the state machine: a Turn is one application of Step(). machine.cc holds the life of an epoch,
// machine_fault.cc what happens when something goes wrong, machine_absent.cc who did not come to a collective,
// machine_policy.cc what the policy makes of it, machine_evict.cc who takes the place of a node, machine_world.cc how
// many nodes there are, machine_update.cc what becomes of versions of the code; only these seven include this.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/control/machine.h"

namespace lockstep::control {

struct Turn {
  State& state;
  Nanos at, wall;  // of the event; `at` never runs backwards
  std::vector<Command> commands;
};

// Counts an event that is of no use in this mode.
void Ignore(Turn& turn);
// Asks for what the state now waits for, ahead of all announcements: a webhook must not hold up a repair.
void Ask(Turn& turn);
// `moment`, moved into the part of the ledger that may still be written.
Nanos Settle(const State& state, Nanos moment);
// Another epoch acts, whose loop has not begun.
void ForgetLoop(State& state);
// The open incident of a job that tells no steps: none will close it when it goes on.
void CloseUnseen(Turn& turn);
// Takes in newer progress; closes the open incident once the job is back where it was.
void Advance(Turn& turn, const Progress& seen);

bool AllExited(const State& state);
// What was saved from here on, up to the acting epoch, is no choice any more.
void Poison(State& state, const CheckpointId& from);
// The job is to end: kills what is left of it, and answers Finish when that is gone.
void BeginFinish(Turn& turn, int exit_code, std::string verdict, Seconds grace);
// The job has ended.
void FinishNow(Turn& turn);

// The incident that is open, which there must be.
incident::Incident& Open(State& state);
void Act(Turn& turn, incident::ActionKind kind, std::string text, bool done = true);
void AnnounceIncident(Turn& turn, size_t index);
void AnnounceOpen(Turn& turn);
void CloseIncident(Turn& turn);
// A new one, without epoch and findings, by its index. Which one is open stays as it is.
size_t AddIncident(Turn& turn, Nanos opened);

// A certain finding leads the open incident, or a new one: the epoch is repaired.
void LeadWith(Turn& turn, incident::Finding finding);
// A fault that needs an answer: from now on the time is lost. The first news counts as noticing, the earliest cause as
// the beginning.
void Strike(Turn& turn, Nanos since);
void Repair(Turn& turn);
// The open incident if it is of this epoch; else a new one.
void EnsureIncident(Turn& turn);
bool AlreadySaid(const State& state, const incident::Finding& finding);
// Of ranks that timed out, of which `loss` tells: for whom they waited, as far as is known. Who was named for that
// before is taken out of the open incident, and leads.
incident::Finding WhoDidNotCome(State& state, const incident::Finding& loss);
// Why no restart can help, or none is left; empty: one may.
std::string ReasonToEnd(const State& state);
bool IsBudgetSpent(const State& state);

// What the policy says about the open incident becomes the plan.
void Resolve(Turn& turn);
// The same, of an epoch that is being killed already.
void ResolveAnew(Turn& turn);
Symptom SymptomOf(const State& state);
// The epoch is gone: the plan is carried out.
void CarryOut(Turn& turn);
// A plan that had to wait for what is so now: a standby, a loop that runs.
void Reconsider(Turn& turn);
// What is done on account of the plan.
void ActOnPlan(Turn& turn, incident::ActionKind kind, std::string text, bool done = true);

// The job may go on without these nodes, whoever stands by.
bool FitsWithout(const State& state, const std::set<int>& gone);
// On account of the open incident the job goes on without this node, which FitsWithout must allow.
void GoOnWithout(Turn& turn, int node, const std::string& why, Role role);
// Either of the two: a standby has its place, or nobody.
void PutOut(Turn& turn, int node, const std::string& why, Role role);
// The epoch is gone, and who takes part in the coming one is settled: they are asked where to begin.
void BeginChoosing(Turn& turn);
// Who was to join can't be given the state of the job.
void UndoGrowth(Turn& turn, const std::string& why);
// Who stands by, or how large the world is, has changed.
void NoteRoom(Turn& turn);
// A node whose agent is out of reach, and which a standby could replace. Of several the one that was lost nearest to
// when connections were: another agent may be away for a reason of its own, while its ranks train on.
std::optional<int> LostReplaceable(const State& state);
// That one was lost long before: a machine that fell silent just now may be behind it, and isn't known to be lost yet.
bool MayBeAnother(const State& state, int node);
// Neither it nor its ranks are in reach: the standby takes its place.
void LoseLostNode(Turn& turn, int node);
// Of a job that is being stopped, those nodes are awaited that are out of reach: others may come in their place.
void AwaitLost(Turn& turn);
// One that is open beside that ends: of an agent that was out of reach, of a bad loss.
void CloseIncident(Turn& turn, size_t index, std::string text);

// It tells no steps, and has run for so long that another fault is not one soon after the last.
bool HasProvenItself(const State& state, Nanos now);
// The version that runs is.
bool IsOnTrial(const State& state);
// The open incident is put down to the version that runs, which is on trial.
bool BlamesTrial(const State& state);
// The next epoch runs another version than this one, as far as is known.
bool IsChanging(const State& state);
// The coming epoch runs the version that waited for a restart, if there is one; and what it runs does not change any
// more.
void TakeVersion(Turn& turn);
// The acting epoch's loop has begun.
void BeginTrial(State& state);
void JudgeTrial(Turn& turn, Seconds step_time);
// The coming epoch runs the newest good version before this one, which there must be.
void RollBack(Turn& turn);
void ReconsiderUpdate(Turn& turn);

void On(Turn& turn, const RankExited& event);
void On(Turn& turn, const Suspected& event);
void On(Turn& turn, const StacksKept& event);
void On(Turn& turn, const SecondaryGraceOver& event);
void On(Turn& turn, const SpawnFailed& event);
void On(Turn& turn, const JournalBehind& event);
// Their ranks do not end, whatever is sent to them: standbys take their places, or the restart goes on waiting.
void LoseStuckNodes(Turn& turn, const std::vector<int>& nodes);
void On(Turn& turn, const AgentBack& event);
void On(Turn& turn, const AgentGone& event);
void On(Turn& turn, const StandbyCame& event);
void On(Turn& turn, const StandbyLeft& event);
// An alert of a machine that stands by: of whether it is fit.
void OfStandby(Turn& turn, const Alerted& event);
// It does so no more: it has a place, or has left.
NodeSpec TakeStandby(State& state, std::vector<NodeSpec>::const_iterator standby);
void On(Turn& turn, const Alerted& event);
void On(Turn& turn, const Probed& event);
void On(Turn& turn, const StopOverdue& event);
void On(Turn& turn, const UpdateAsked& event);
void On(Turn& turn, const CodeKept& event);
void On(Turn& turn, const UpdateDue& event);
void On(Turn& turn, const GrowthDue& event);

}  // namespace lockstep::control
