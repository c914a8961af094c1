// What the control plane hears (events, journalled) and what it asks for (commands, carried out at the rim). Values
// with a JSON form; the journal holds events only: replaying them through Step() gives the state back.
// docs/formats/journal.md lists them.
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/ids.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/control/policy.h"
#include "lockstep/control/version.h"
#include "lockstep/incident/incident.h"

namespace lockstep::control {

// One of the machines that a job runs on, with as many ranks of it; ranks are counted through from node to node.
struct NodeSpec {
  std::string name;
  int ranks = 1;
  std::string token{};  // by which its agent is known when it comes back
  bool operator==(const NodeSpec&) const = default;
};

struct JobSpec {
  std::string name;
  int ranks = 1;
  int max_restarts = 1000;    // in the life of the run
  int no_progress_limit = 3;  // restarts in a row without one new step: stop
  bool observe_only = false;
  Seconds grace{30};  // SIGTERM to SIGKILL when a user stops the job
  // max_restarts was asked for: a job that reports no steps gets all of them, since nothing tells whether they help.
  bool restarts_without_steps = false;
  EpochId first_epoch{1};               // above those of the runs before, where they have left checkpoints on disk
  bool load_first = false;              // there may be a checkpoint on disk: choose before the first epoch too
  std::vector<NodeSpec> nodes{};        // empty: one
  std::string layout{};                 // as JSON (cluster::LayoutJson); empty: not known
  std::string entry{};                  // what workers of other nodes are started with, by its name; empty: not known
  int standbys = 0;                     // agents beyond those of the nodes that may wait for a place to become free
  int leading_node = -1;                // whose agent lives in the coordinator's process; -1: none's
  bool can_ask = false;                 // there is a scheduler that may bring another machine
  int least_nodes = 0, most_nodes = 0;  // the world may have so many; 0: it never changes
  Policy policy{};
};

// Where the job stood when something happened: the newest step that all ranks finished, and when the last of them did.
struct Progress {
  int64_t step = -1;
  Nanos step_end;  // 0 = no step in this epoch yet
};

struct CheckpointId {
  EpochId epoch;
  int64_t step = -1;
  auto operator<=>(const CheckpointId&) const = default;
};

// How a worker left. signal != 0: killed by it. exception: what its excepthook wrote, if anything.
struct ExitStatus {
  int code = 0;
  int signal = 0;
};
inline bool IsClean(const ExitStatus& status) { return status.code == 0 && status.signal == 0; }
struct ExceptionInfo {
  std::string type;         // "ValueError"
  std::string message;      // first line
  std::string where;        // innermost frame of the user's code, "train.py:41 in forward"
  bool connection = false;  // a lost peer, not this rank's own doing
  bool port_taken = false;  // somebody else had the port on which this rank was to host the rendezvous store
  bool after_loss =
      false;               // raised while a lost peer's error was handled: its own doing, unless a death is behind that
  bool timed_out = false;  // of `connection`: nobody went, somebody did not come
};

// ---- events

struct JobStarted {
  JobSpec spec;
};
struct EpochSpawned {
  EpochId epoch;
};  // all workers of the epoch are running
struct LoopBegan {
  EpochId epoch;
  Nanos begin;
  std::optional<CheckpointId> restored;
  bool unseen = false;  // no rank tells steps: by time alone, TrainsUnseen
};  // last rank left restore() at `begin`
struct CaughtUp {
  EpochId epoch;
  Progress progress;
  bool finite = false;  // the loss of every rank is a finite number, and was not
};  // the lost steps have been computed again; of a job that tells no steps: nothing is seen to keep it any more
struct ProgressSeen {
  EpochId epoch;
  Progress progress;
  Seconds step_time{};  // the median lately; 0: not known
};  // now and then, so that a replayed ledger is right
struct RankExited {
  EpochId epoch;
  RankId rank;
  ExitStatus status;
  std::optional<ExceptionInfo> exception;
  Progress progress;
  Nanos exited;
  int64_t step = -1;  // the last that this rank finished; -1: none, or its agent doesn't tell
};
// Another one's death may be behind it, however the rank left then: gloo may abort it, or we kill it while it unwinds.
inline bool MayFollowFromLoss(const RankExited& event) {
  return event.exception && (event.exception->connection || event.exception->after_loss);
}
struct Suspected {
  EpochId epoch;
  incident::Finding finding;
  Progress progress;
  // What was saved from this step of this epoch (0: `epoch`) on, up to now, is of no use; -1: nothing.
  int64_t bad_from = -1;
  EpochId bad_epoch{};
};
struct StacksKept {
  EpochId epoch;
  std::string path;
};  // answer to KeepStacks, also when nothing could be read
struct EpochStopped {
  EpochId epoch;
  // The loss of a rank was no finite number any more: what was saved from here on is of no use.
  std::optional<CheckpointId> bad_from{};
};  // every process of it is gone
struct RestoreChosen {
  EpochId epoch;
  std::optional<CheckpointId> point;
  std::vector<std::string> rejected;
  std::string unfit{};  // no epoch may begin, though there may be a checkpoint: why
};  // for the coming epoch
struct SpawnFailed {
  EpochId epoch;
  std::string error;
};
struct StopAsked {
  int signal;
};  // one of --signals-to-handle, or `lockstep stop`
struct JobPaused {};  // Ctrl-Z, or all ranks stopped by somebody
struct JobContinued {};
struct WatcherGone {
  Nanos since;
  bool same = false;
  bool noted = false;  // when it left: else it may have been there later than its last word, which is `since`
};  // this coordinator took over; the one before, or the same, which was stopped, was last seen then
struct SecondaryGraceOver {
  EpochId epoch;
};  // answer to WaitForCulprit
// Since then nobody could come whose return is awaited: this coordinator was stopped, or there was none.
struct WaitInterrupted {
  Nanos since;
};
// Nothing is heard from a node any more; its ranks may train on.
struct AgentLost {
  int node = 0;
  std::string name, why;
  Nanos since;
  bool silent = false;  // nothing was heard of it since then; else its connection was closed
};
struct AgentBack {
  int node = 0;
};
// It will not come back, or not with its workers.
struct AgentGone {
  int node = 0;
  std::string why;
  bool explains = false;  // a lost connection whose cause is unknown; a journal of before has it false
};
// An agent came that has no place in the job: it waits for one, with its Python warm.
struct StandbyCame {
  NodeSpec node;
};
struct StandbyLeft {
  std::string token;
};
// What an agent's inspection of its own machine says. It is said again, with a later `since`, when the next inspection
// finds it unchanged: that is another alert. Machine: the hardware or the system is broken, by the word of the driver
// or the kernel. Network: a link or a port. Software: what the job needs of this machine, such as room on a disk.
// Warning: worth knowing.
enum class AlertClass { kMachine, kNetwork, kSoftware, kWarning };
const char* AlertClassName(AlertClass kind);
struct Alerted {
  int node = 0;
  std::string item;  // what was inspected: "gpu_xid"
  AlertClass kind = AlertClass::kWarning;
  std::string subject;  // which of them: "gpu3", "eth0"; empty: the machine
  std::string text;     // one sentence, with its figures
  Nanos since;
  bool cleared = false;  // it is over
  std::string token{};   // of a standby that says so, which is no node; empty: of `node`
};
// The answer to Probe, of all nodes or of those that answered in time. Findings that are certain name whom to evict.
struct Probed {
  EpochId epoch;
  Rung rung = Rung::kDiagnose;
  std::vector<incident::Finding> findings{};
  std::vector<std::string> unanswered{};  // nodes, by name
  std::vector<std::string> reports{};     // of a node: what its tests printed; Fleet makes findings of those of all
  std::string note{};                     // how it was found, or why nothing was
};
// Processes do not end: the answer to WaitForStop, with the nodes on which some are left; or, since KillEpoch, for so
// long (Policy::stuck_within) that these nodes count as lost; said again when somebody comes who may take their place.
struct StopOverdue {
  EpochId epoch;
  std::vector<int> nodes{};      // lost
  std::vector<int> unstopped{};  // of the answer
};
// `lockstep update`: a new version, on top of the newest. Code and env lack what stays as it is.
struct UpdateAsked {
  std::string code{}, hash{};  // as in Version
  std::map<std::string, std::string> env{};
  bool now = false;
  Seconds within{};         // unless a restart has brought it before
  bool takes_back = false;  // what waits, if it asks for what runs; a journal of before has it false
};
// Answer to KeepCode, of all nodes, or the first error. Of version 0, for which nobody asks, what a node has copied, or
// all have.
struct CodeKept {
  int version = 0;
  std::string error{};  // empty: every node has its copy
  std::string hash{};   // of version 0; with an error: of what is copied, for not all of it is. Empty: nothing is
  bool operator==(const CodeKept&) const = default;
};
// A version has waited for a restart as long as it was to.
struct UpdateDue {
  int version = 0;
};
// A world that is smaller than it may be, with a machine that stands by, has waited long enough: it grows.
struct GrowthDue {
  EpochId epoch;
};
// What came of something that was wanted of the cluster's scheduler: for the record of an incident.
struct ClusterDid {
  int64_t incident = 0;
  std::string drained;  // the node that was to be drained, whether or not it was; empty: it was about none
  std::string text;     // one sentence
};
// A fault that `lockstep drill` is about to inject: a rehearsal. It changes nothing; reports tell it from a real fault.
inline constexpr char kKillCoordinator[] = "kill-coordinator";
inline constexpr char kKillDrill[] = "kill", kExitDrill[] = "exit", kNanDrill[] = "nan";
inline constexpr char kKillStarter[] = "kill-starter", kCutLink[] = "cut-link";  // of the node that has the rank
struct Drilled {
  EpochId epoch;
  std::string fault;       // "kill"
  int rank = -1;           // -1: it strikes no rank
  bool withdrawn = false;  // it was announced, and did not strike after all
};
std::string Text(const Drilled& drill);  // "kill of rank 2"
// An agent acts for an epoch of which the journal knows nothing: a full disk did not take the last events, and then the
// coordinator died.
struct JournalBehind {
  EpochId seen;
};
struct Tick {};  // nothing happened; never journalled

using EventBody = std::variant<JobStarted, EpochSpawned, LoopBegan, CaughtUp, ProgressSeen, RankExited, Suspected,
                               StacksKept, EpochStopped, RestoreChosen, SpawnFailed, StopAsked, JobPaused, JobContinued,
                               WatcherGone, SecondaryGraceOver, Drilled, AgentLost, AgentBack, AgentGone, StandbyCame,
                               StandbyLeft, JournalBehind, Alerted, Probed, StopOverdue, UpdateAsked, CodeKept,
                               UpdateDue, ClusterDid, GrowthDue, WaitInterrupted, Tick>;
struct Event {
  Nanos at;
  Nanos wall;
  EventBody body;
};

// ---- commands

struct Spawn {
  EpochId epoch;
  int restart_count = 0;
  // Where the epoch's rendezvous store is: the answer to HostStore (link.h), filled in before agents are told.
  std::string store_host{};
  int store_port = 0;
  bool store_hosted = true;
  Version version{};
};  // answers EpochSpawned or SpawnFailed
struct KeepStacks {
  EpochId epoch;
  int64_t incident;
};  // answers StacksKept
struct WaitForCulprit {
  EpochId epoch;
  Seconds at_most;
};  // a connection error came first: wait for the death behind it
struct KillEpoch {
  EpochId epoch;
  Seconds grace;
  int signal = SIGTERM;  // sent first
  // Grace 0: ranks that offer to leave their training function and enter it again need not be killed, but for these.
  std::vector<RankId> suspects{};
  bool anew = false;  // the next epoch runs other code: nobody keeps its process
};  // grace 0: SIGKILL at once. Answers EpochStopped
struct ChooseRestore {
  EpochId next;  // the one that is to begin
  // Nothing that the epoch of one of these saved at its step or later is a choice: the training had gone wrong by then.
  std::vector<CheckpointId> poisoned{};
};  // verify the CRCs of what is in memory; link.h has the rest of the conversation; in the end, RestoreChosen
struct PublishRestore {
  EpochId epoch;
  std::optional<CheckpointId> point;
};
// This node's place has been given to a standby; whoever had it is refused from now on. Both say who: by the time that
// they are carried out the state may count its nodes anew.
struct Seat {
  int node = 0;
  NodeSpec standby{};
};
// This node is out of the job, and nobody has its place: it is refused from now on, and what ran there runs no more.
struct Vacate {
  int node = 0;
  NodeSpec left{};
};
// The coming epoch has another world, that of the state: by its nodes, which number each had before; -1: it stood by.
struct Resize {
  std::vector<int> from;
};
// Look into your machine (diagnose), or take part in a replay, while nothing of the job runs. Answers Probed, of which
// nobody waits for more after `at_most`; or, of a replay that somebody leads, ReplayReady.
struct Probe {
  EpochId epoch;
  Rung rung = Rung::kDiagnose;
  int64_t incident = 0;
  Seconds at_most;
  std::vector<std::string> ring{};  // HOST:PORT of the nodes that test the ways between them, in order; empty: none do
  uint64_t search = 0;              // by replay, which answers ReplayReady (link.h); 0: nobody leads one
};
// A node is evicted when its ranks have ended, or else after this time: answers StopOverdue.
struct WaitForStop {
  EpochId epoch;
  Seconds at_most;
};
// Take a copy of this version's code, so that the coming epochs can run it; answers CodeKept.
struct KeepCode {
  Version version;
};
// Evictions wait for so many machines more: for whoever can bring some.
struct AskForNodes {
  int count = 1;
};
struct Announce {
  incident::Incident incident;
};  // webhook, log, live view: opened, changed or closed
// The exit status of `lockstep run`. Lost: what the job ran on was, and a new run may go on. (2: bad input, no job.)
inline constexpr int kExitDone = 0, kExitFailed = 1, kExitLost = 3;
struct Finish {
  int exit_code;
  std::string verdict;
};  // the job is over

using Command = std::variant<Spawn, KeepStacks, WaitForCulprit, KillEpoch, ChooseRestore, PublishRestore, Seat, Vacate,
                             Resize, Probe, WaitForStop, KeepCode, AskForNodes, Announce, Finish>;

std::string TypeName(const EventBody& body);  // "rank_exited": the journal's event type
Json ToJson(const EventBody& body);
// Of one event, as a request has it that asks to write it down.
absl::StatusOr<Drilled> DrilledFromJson(const Json& json);
absl::StatusOr<UpdateAsked> UpdateFromJson(const Json& json);
absl::StatusOr<EventBody> EventFromJson(const std::string& type, const Json& json);

}  // namespace lockstep::control
