// The control plane as a deterministic state machine: Step(state, event) -> commands. No clock, socket, file or chance
// in here; the same events give the same state and commands, so a journal replays into the state and a simulator can
// try every order.
//
//   (loading) -> spawning, as below
//   starting -> running -> (confirming) -> stopping -> (probing) -> choosing -> spawning -> starting ...
//   any -> finishing -> finished
//
// Rules: an event of another epoch than the acting one is counted and ignored. The first certain finding leads;
// findings that come while its incident is open join it. A survivor's connection error is never the culprit. Restart =
// all ranks, in place, from the newest committed checkpoint. It stops for good when the budget is used up, when
// restarts bring no new step, or when the same exception strikes at the same step twice. What else than a restart may
// follow from a fault, the policy says (policy.h): a node is evicted when its ranks have ended, and a probe is of a job
// that stands.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/control/alerts.h"
#include "lockstep/control/events.h"
#include "lockstep/control/ledger.h"
#include "lockstep/control/ranks_end.h"
#include "lockstep/control/version.h"
#include "lockstep/incident/incident.h"

namespace lockstep::control {

enum class Mode {
  kStarting,    // all workers run; the loop has not begun
  kRunning,     // the loop runs
  kConfirming,  // a fault is known; stacks are awaited, or the culprit behind a lost connection
  kStopping,    // the epoch is being killed
  kChoosing,    // the checkpoint for the coming epoch is chosen
  kSpawning,    // workers are being started
  kFinishing,   // all have finished, or the job was stopped: the last checkpoint goes to disk
  kFinished,
  kLoading,  // a checkpoint is chosen before the first epoch
  kProbing   // nothing runs; machines are tested
};
const char* ModeName(Mode mode);

// A node that is to go, by the token of whoever had its place when that was decided.
struct Evictee {
  int node = 0;
  std::string token, why;
  Role role = Role::kInspection;
};

// What is done about a fault once its epoch is gone.
struct Plan {
  Symptom symptom = Symptom::kOurs;
  Rung rung = Rung::kReattempt;
  std::string reason;
  std::vector<Evictee> evict;
  bool free = false;  // the restart is not charged to the budget
};

// The fault on whose account an incident is open: what the ledger and the way out of it need to know.
struct Fault {
  EpochId epoch;                // in which it struck; once it is repaired, that is before the acting one
  int64_t step = -1;            // finished by all ranks when it struck
  Nanos since, noticed, acted;  // it began; we heard of it; we began to kill. 0 = not yet
  bool keeping_stacks = false;  // confirming: StacksKept is awaited, and not a culprit
  int64_t close_at_step = 0;    // the incident closes when all ranks have finished this step
  std::string program_error;    // a verdict: no restart can help. Empty = one may
  bool free_retry = false;      // the restart that repairs it is not charged to the budget
  bool led = false;             // a certain finding leads it, and asks for an answer
  bool unexplained = false;     // it is led by who lost a connection first, for want of a cause
  bool traceable = false;       // it is an exception that has a place in the program
  std::vector<Culprit> named;   // by probes
  std::set<int> stuck;          // nodes whose ranks do not end, and whose place nobody could take
  int64_t bad_from = -1;        // what was saved from this step on, up to its epoch, is of no use; -1: nothing
  Plan plan;
  // Errors of ranks' own, unless a death is behind the lost connections that they handled when they met them.
  std::map<RankId, RankExited> after_loss;
  std::set<RankId> timed_out;  // lost their connections for that: they waited, and somebody did not come
};

// A rung that was taken.
struct Climbed {
  Symptom symptom;
  Rung rung;
  int64_t incident, chain;  // chain: the first incident of those that came soon after each other
  Nanos resumed;            // training began anew; 0: it has not
};

// What the policy made of a fault.
struct Decided {
  int64_t incident;
  Nanos at;
  Symptom symptom;
  Decision decision;
};

// As suspects whose loss is an incident.
inline constexpr char kCoordinatorName[] = "the coordinator";
inline std::string AgentName(const std::string& node) { return "the agent of node " + node; }

// A rehearsed fault, and when it was announced.
struct Drill {
  Drilled what;
  Nanos at;
};

// Whose place a standby took, or nobody, and why. Its agent is refused for good: that is the fence.
struct Eviction {
  NodeSpec node;
  std::string standby;  // by its name; empty: the world goes on without
  std::string why;
  Nanos at;
  Role role = Role::kLoss;  // on whose word
  int64_t incident = 0;     // on account of which
  bool drain_told = false;  // what came of draining it, in the cluster, is known
  bool joined = true;       // false: it could not take its place in a world that was to grow; nothing was lost
};

// Who had which place, from then on.
struct World {
  Nanos since;
  std::vector<NodeSpec> nodes;
};

// A lost node without a standby: another machine is asked for, since then, on account of this incident.
struct Awaited {
  Nanos since;
  int64_t incident = 0;
};

struct Departure {
  ExitStatus status;
  Nanos at;
  int64_t step = -1;  // the last that the rank finished, as far as is known
};

// An exception that ended a rank: "ValueError at train.py:41 in forward".
struct SeenException {
  std::string what;
  int64_t step = -1;
  EpochId epoch;
};

// The copy of what the run began with that these nodes have, by token.
struct FirstCode {
  std::string hash;
  std::set<std::string> nodes;
};

struct LostAgent {
  size_t incident;  // that is open while it is out of reach
  bool silent;      // as in AgentLost
};

struct State {
  JobSpec spec;  // its nodes: who has which place now
  Mode mode = Mode::kStarting;
  bool paused = false;
  EpochId epoch;  // the one epoch that may act
  int restarts = 0;
  int restarts_without_progress = 0;
  int free_retries = 0;                 // restarts that the budget is not charged with
  int free_retries_in_row = 0;          // since the training loop last began
  int64_t frontier = -1;                // the furthest step that all ranks ever finished
  bool recomputing = false;             // behind the frontier
  Progress progress;                    // newest known
  std::map<RankId, Departure> exits;    // of the acting epoch
  std::optional<CheckpointId> restore;  // where the acting epoch began
  std::vector<incident::Incident> incidents;
  std::vector<Drill> drills;
  std::optional<size_t> open;            // index of the incident that is open
  std::map<int, LostAgent> lost_agents;  // by node
  std::optional<size_t> bad_loss;        // the incident that is open while a loss is no number, and is only named
  std::vector<NodeSpec> standbys;        // in the order in which they came
  std::map<std::string, Alerts> alerts_of_standbys;  // by token
  std::vector<Eviction> evictions;
  std::vector<World> worlds;       // that the job had; the last is that of `spec`
  int64_t lost_in = 0;             // the incident of a node with whose loss the job ended; 0: none
  std::map<int, Awaited> awaited;  // by node; in reach again, or replaced, it is not
  std::set<int> vacated;           // nodes that the coming epoch does not have, until its world is settled
  std::set<std::string> joining;   // choosing: machines that the last world did not have, by token
  EpochId world_since;             // the first of this world, also if it is to come; 0: that of the job
  bool may_grow = true;            // its state is not known to forbid it
  Nanos room_since, grown;         // a machine stands by and the world may grow; when it last did. 0: not so
  Alerts alerts;
  std::vector<Climbed> ladder;
  std::vector<Decided> decisions;
  std::vector<Update> versions = std::vector<Update>(1);  // by number; the first is what the run was started with
  int running = 0;                                        // the version of the acting epoch
  FirstCode first_code;                                   // as the nodes told last
  std::string kept;  // the copy of it that all nodes of the acting epoch have, by its hash; empty: not all have one
  Seconds step_time, step_time_before;  // of that version, and of the good one before it; 0: not known
  int64_t trial_ends = 0;               // on trial: it is judged when all ranks have finished this step; 0: not begun
  std::vector<CheckpointId> poisoned;   // of each epoch named: of no use from this step on
  Fault fault;                          // of the incident that is open
  int64_t frontier_at_restart = -1;
  // Of the newest epoch that had one, and of the one before it: a repeat at the same step ends the job.
  SeenException last_exception, earlier_exception;
  int64_t ignored_events = 0;  // of a stale epoch, or not awaited
  bool stop_asked = false;     // the user, or the cluster, wants the job to end, and kills what has not by then
  Seconds kill_grace;          // finishing: what the newest KillEpoch asked for
  int kill_signal = SIGTERM;   // and the signal of its grace
  bool in_loop = false;        // the acting epoch's training loop has begun
  bool unseen = false;         // by time alone: it tells no steps
  Nanos spawned;               // all workers of the acting epoch ran; 0: they do not yet
  Nanos loop_began;            // when that was heard
  Nanos now;                   // of the newest event
  Nanos finished;              // 0: it is not
  Nanos settled;               // the ledger before this moment is not rewritten
  int exit_code = 0;
  std::string verdict;  // one sentence on how the job ended
  Ledger ledger;
};

// Applies one event. Time comes from the event alone.
std::vector<Command> Step(State& state, const Event& event);

// What the state waits for, asked again: for a coordinator that took over. Every command is idempotent.
std::vector<Command> PendingCommands(const State& state);

// The world may grow, and has waited for a restart long enough: GrowthDue.
bool IsGrowthDue(const State& state, Nanos now);

// What its own inspection says of a standby whose machine is broken; empty: it is fit to take a place.
std::string WhyUnfit(const State& state, const NodeSpec& standby);
// Those that are fit.
int CountFit(const State& state);
// Which of these standbys would take this node's place: one that is fit and has as many ranks; rather the one of its
// own name, and none that has another node's.
std::vector<NodeSpec>::const_iterator StandbyFor(const State& state, int node, const std::vector<NodeSpec>& standbys);
// The same, if the node were lost: where the job could not go on without it, one that is not fit is better than none.
std::vector<NodeSpec>::const_iterator SuccessorTo(const State& state, int node, const std::vector<NodeSpec>& standbys);
// A standby could take this node's place, were it lost.
bool IsReplaceable(const State& state, int node);

// The version to run in the acting epoch.
Version VersionToRun(const State& state);
// The version whose code the nodes are to copy.
std::optional<Version> VersionToCopy(const State& state);
// It has waited for a restart long enough: UpdateDue.
std::optional<int> UpdateThatIsDue(const State& state, Nanos now);
// There is an earlier version of the code that was good.
bool CanRollBack(const State& state);
// What is known of the version on trial suffices to judge it: ProgressSeen, with the time of a step.
bool IsTrialOver(const State& state, const Progress& progress, Seconds step_time, Nanos now);

// Workers of which not all have joined have run for so long that their job counts as one that tells no steps:
// LoopBegan, unseen. Should a step be told after all, everything counts from there. Python, torch and the process group
// are there in seconds, most models in a minute; of a script that loads for longer before it joins, what was booked is
// taken back when it does.
inline constexpr Seconds kUntilUnseen{60};
bool TrainsUnseen(const State& state, Nanos now);

// Ranks have lost connections, and what is behind that is waited for: SecondaryGraceOver ends it.
bool AwaitsCulprit(const State& state);
// Since when its agent is out of reach, whoever led then; `otherwise`, if nobody has said that it is.
Unheard UnheardSince(const State& state, int node, Nanos otherwise);
// When a node whose agent is out of reach since then counts as gone, if the job stands. Until then it may come back
// with its workers. Where a scheduler may bring another machine, that is first when one is asked for, and then when
// nobody came. A stop has its grace: whoever asked for it is not kept waiting for a node that need not come back.
Nanos GoneAt(const State& state, int node, Nanos lost_since);
// Whether it ends the job if a node is said to be gone at this moment.
bool IsEnd(const State& state, int node, Nanos at);

// What the policy would answer now to what the inspections have said of machines, or of their network.
Decision AnswerToAlerts(const State& state, Symptom symptom);

// Our own invariants; called by tests and debug builds after each step.
absl::Status Validate(const State& state);

}  // namespace lockstep::control
