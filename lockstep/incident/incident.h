// Finding: what a detector saw and whom it names. Action: what was done about it. Incident: findings + actions + times,
// the unit of history and of ETTR. All are plain values with one JSON form (docs/formats/incident.md). Times:
// CLOCK_BOOTTIME.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/ids.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::incident {

// What is wrong, in the words of an operator; SyndromeName gives the snake_case form.
enum class Syndrome {
  kCrash,           // killed by a signal
  kExit,            // left with a non-zero status or an uncaught exception; or with 0, though the training was not over
  kStopped,         // state T while others wait
  kFrozen,          // cgroup freezer while others wait
  kNotEntered,      // outside the collective in which the others wait, and it can't get there
  kSpinning,        // busy without progress while others wait
  kDesynchronised,  // ranks wait in different collectives
  kStalled,         // no rank advances; nobody in particular is to blame
  kCorruptCheckpoint,
  kWatcherLost,           // coordinator or agent was gone, whatever became of the job
  kCommunicationHang,     // in a collective that others have ended, or that nobody ends though all are in it
  kNonCommunicationHang,  // has not launched the collective in which others wait
  kMismatched,            // called another collective, or with other sizes, than the others
  kDeadlock,              // ranks wait for each other in a circle
  kCommunicationSlow,     // messages take long between ranks that have both come
  kNonCommunicationSlow,  // comes late to its collectives by its own doing
  kJobSlow,               // all ranks alike have become slower
  kNodeLost,              // neither its agent nor its ranks are in reach, and the others can't go on without them
  kMachineFault,          // hardware or system, by the word of its own driver or kernel
  kNetworkFault,          // a link or a port of a node
  kNan,                   // the loss is no finite number any more
  kUpdate,                // nothing is wrong: a new version of the code is to run
  kDataSlow,              // batches come later than they are wanted
  kPlanDrift,             // steps take longer than a plan predicted
};
inline constexpr int kSyndromeCount = static_cast<int>(Syndrome::kPlanDrift) + 1;

struct Suspect {
  enum class Kind { kRank, kNode, kNicPort, kLink, kSoftware, kBlock };
  Kind kind = Kind::kRank;
  std::string name;  // "2" for rank 2; "node3"; "train.py:41 in forward" for software; "node2+node3" for a block
  auto operator<=>(const Suspect&) const = default;
};
Suspect SuspectRank(RankId rank);
// None: it is no rank.
std::optional<RankId> RankOf(const Suspect& suspect);

// What a fault costs a job that goes on: all its ranks lose the same share of the time.
struct Price {
  double share = 0;  // of the time that the job would not take without it; 0: not known
  int ranks = 0;
  bool at_least = false;  // it may well be more
  double gpu_hours_per_day() const { return share * ranks * 24; }
};

struct Finding {
  Syndrome syndrome = Syndrome::kStalled;
  std::vector<Suspect> suspects;
  std::vector<Suspect> ambiguous_with;  // equally good candidates, were one more fact known
  std::string probe;                    // which fact would tell them apart; empty = none needed
  std::vector<std::string> evidence;    // one observation a line, with its figures
  bool certain = false;                 // enough to act by force, unless it is slowness
  Nanos since;                          // best estimate of when the fault began
  Price price;
};

enum class ActionKind { kEvict, kRestart, kRollback, kHotUpdate, kReplan, kCheckpoint, kStop, kNote };
struct Action {
  ActionKind kind = ActionKind::kNote;
  std::string text;  // "restart of all 4 ranks in epoch 3 from step 117"
  bool done = true;  // false: only said, under --observe-only
  Nanos at;
  std::string rung{}, reason{};  // of the policy of recovery; empty: it had no part in this
};

// Where the lost time of an incident went. Filled from the ledger, nowhere else.
struct Phases {
  Seconds detect, decide, restart, recompute;
};

struct Incident {
  int64_t id = 0;                 // 1, 2, ... in a run
  EpochId epoch;                  // in which it struck; 0: in none
  std::vector<Finding> findings;  // the first certain one leads
  std::vector<Action> actions;
  Nanos opened, closed;  // closed.value == 0: still open
  Nanos opened_wall;     // for people
  Phases phases;
  std::string drill;       // "kill of rank 2": `lockstep drill` did it. Empty: nobody rehearsed
  int64_t steps_lost = 0;  // completed steps that were computed again
};

// The finding that gave the incident its name: the first certain one, else the first. Requires at least one.
const Finding& Lead(const Incident& incident);

// The job goes on, only not as fast as it could: never a reason to restart it.
bool IsSlowness(Syndrome syndrome);
const char* SyndromeName(Syndrome syndrome);
const char* ActionName(ActionKind kind);
// "rank 2 was stopped (state T) while 3 ranks wait": one line for terminals and alerts.
std::string Headline(const Incident& incident);
std::string Headline(const Finding& finding);

Json ToJson(const Suspect& suspect);
Json ToJson(const Price& price);  // null: not known
Json ToJson(const Finding& finding);
Json ToJson(const Action& action);
Json ToJson(const Incident& incident);  // the interface of `lockstep incidents --json`
absl::StatusOr<Finding> FindingFromJson(const Json& json);

}  // namespace lockstep::incident
