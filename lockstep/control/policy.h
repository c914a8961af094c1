// The policy of recovery: which rung of the ladder follows from a fault, from what is known of it and from what was
// tried. A table (kTable in policy.cc, printed by `lockstep policy`), some values (Policy; presets/policy/default.toml
// has them with their meaning) and Decide(), which takes the first row that applies and is possible. What applied and
// was not possible is told, with the reason.
// Pure. Invariants: it evicts nobody who is not named, never more than the caps allow, and always has an answer.
// docs/models/recover.md has the table for people.
//
//   const Decision decision = Decide(policy, {.symptom = Symptom::kCrash});
//   RungName(decision.rung), decision.reason, decision.refused ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::control {

enum class Rung : uint8_t { kNote, kReattempt, kEvict, kDiagnose, kRollback, kReplay, kGiveUp };
inline constexpr int kRungs = 7;
const char* RungName(Rung rung);  // "give_up"
std::optional<Rung> RungFromName(std::string_view name);
// Asks the nodes of a stopped job a question, and changes nothing.
inline bool IsProbe(Rung rung) { return rung == Rung::kDiagnose || rung == Rung::kReplay; }

// What a fault looks like to whoever must answer it.
enum class Symptom : uint8_t {
  kMachine,   // a machine's own inspection says that it is broken
  kNetwork,   // an inspection says so of its network
  kNodeLost,  // neither a node's agent nor its ranks are in reach
  kProgram,   // an exception that can be traced to a line of the program
  kCrash,     // a signal, an exit code, a connection that was lost: nobody knows why
  kHang,      // a rank holds the others up, by evidence
  kNan,       // the loss is no number any more
  kUpdate,    // a version was asked for, or is too slow
  kOurs,      // a port that was taken, a journal that is behind: nothing is wrong with the job
};
inline constexpr int kSymptoms = 9;
const char* SymptomName(Symptom symptom);  // "node_lost"

// On whose word a node may be evicted.
enum class Role : uint8_t { kInspection, kDiagnosis, kReplay, kLoss };
inline constexpr int kRoles = 4;
const char* RoleName(Role role);
std::optional<Role> RoleFromName(std::string_view name);

struct Policy {
  bool dry_run = false;
  int evictions_per_hour = 2;
  int least_machines = 0;
  std::vector<std::string> may_evict = {"inspection", "diagnosis", "replay", "loss"};
  Seconds stop_within{20}, stuck_within{120};
  int network_alerts = 2;
  Seconds network_window{300};
  Seconds again_within{600};
  bool diagnose = true, rollback = true, replay = true;
  Seconds diagnose_within{300}, replay_within{1800};
  Seconds wait_for_node{600};
  Seconds grow_after{30}, grow_every{600};
  int nan_steps = 3;
  bool nan_restart = true;
  int update_steps = 20;
  int update_slower = 20;  // percent
  bool operator==(const Policy&) const = default;
};

// A node that somebody names beyond doubt.
struct Culprit {
  int node = 0;
  std::string name, why;  // why: one sentence
  Role role = Role::kInspection;
  bool replaceable = true;  // a standby waits that fits
  bool leads = false;       // the coordinator lives in its agent's process
};

struct FaultFacts {
  Symptom symptom = Symptom::kCrash;
  std::vector<Culprit> culprits{};
  bool widespread = false;           // several nodes complain of the network
  std::vector<Rung> tried{};         // against faults of this kind, each soon after the one before; empty: the first
  std::optional<Seconds> ran_since;  // how long the job ran since the one before, if there was one
  std::string hopeless{};            // why no restart can help; empty: one may
  bool spent = false;                // no restart is left
  int evicted_last_hour = 0;
  int nodes = 1, standbys = 0;
  bool can_roll_back = false;  // there is an earlier version of the code
  bool on_trial = false;       // the fault is put down to a version that is new
};

struct Refusal {
  Rung rung;
  std::string why;
};
struct Decision {
  Rung rung = Rung::kReattempt;
  std::vector<int> nodes{};  // to evict
  std::string reason{};
  std::vector<Refusal> refused{};
  int machines_wanted = 0;  // for evictions that failed for want of a standby alone
};

Decision Decide(const Policy& policy, const FaultFacts& facts);

// Keys as presets/policy/default.toml has them; what is absent keeps its default.
absl::StatusOr<Policy> ReadPolicy(const std::string& path);
Json ToJson(const Policy& policy);
absl::StatusOr<Policy> PolicyFromJson(const Json& json);
// {policy: {...}, table: [{symptom, when, rung, because}]}
Json PolicyReport(const Policy& policy);

}  // namespace lockstep::control
