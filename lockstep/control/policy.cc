#include "lockstep/control/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::control {
namespace {

enum class When : uint8_t { kAlways, kNamed, kWidespread, kHopeless, kFirst, kAgain, kOnTrial };

struct Row {
  Symptom symptom;
  When when;
  Rung rung;
  const char* because;
};

// From top to bottom; the first row that applies, and whose rung is possible, is taken.
constexpr Row kTable[] = {
    {Symptom::kMachine, When::kNamed, Rung::kEvict, "the machine itself says that it is broken: no test is needed"},
    {Symptom::kMachine, When::kAlways, Rung::kNote, "the job runs on with it, and nobody can take its place"},
    {Symptom::kNetwork, When::kWidespread, Rung::kNote,
     "several nodes complain of it: a switch or the network between them, and no node is to blame"},
    {Symptom::kNetwork, When::kNamed, Rung::kEvict, "it does not heal, or comes again and again"},
    {Symptom::kNetwork, When::kAlways, Rung::kNote, "a link may heal by itself"},
    {Symptom::kNodeLost, When::kHopeless, Rung::kGiveUp, ""},
    {Symptom::kNodeLost, When::kNamed, Rung::kEvict, "neither its agent nor its ranks are in reach"},
    {Symptom::kNodeLost, When::kAlways, Rung::kGiveUp, "a node is lost, and nobody can take its place"},
    {Symptom::kProgram, When::kOnTrial, Rung::kRollback, "it came with the new version"},
    {Symptom::kProgram, When::kAlways, Rung::kRollback, "the exception is in the program, and no machine is to blame"},
    {Symptom::kProgram, When::kHopeless, Rung::kGiveUp, ""},
    {Symptom::kProgram, When::kAlways, Rung::kReattempt, "an exception may have come from outside the program"},
    {Symptom::kCrash, When::kOnTrial, Rung::kRollback, "it came with the new version"},
    {Symptom::kCrash, When::kHopeless, Rung::kGiveUp, ""},
    {Symptom::kCrash, When::kNamed, Rung::kEvict, "a check names the machine behind it"},
    {Symptom::kCrash, When::kFirst, Rung::kReattempt, "most do not come back"},
    {Symptom::kCrash, When::kAgain, Rung::kDiagnose, "it came back: is a machine behind it?"},
    {Symptom::kCrash, When::kAgain, Rung::kRollback, "no machine is: is it the newest code?"},
    {Symptom::kCrash, When::kAgain, Rung::kReplay,
     "it is not: groups of nodes replay a step, and two ways of grouping name one"},
    {Symptom::kCrash, When::kAlways, Rung::kReattempt, "all rungs were tried, and restarts are left"},
    {Symptom::kHang, When::kOnTrial, Rung::kRollback, "it came with the new version"},
    {Symptom::kHang, When::kHopeless, Rung::kGiveUp, ""},
    {Symptom::kHang, When::kNamed, Rung::kEvict, "a check names the machine behind it"},
    {Symptom::kHang, When::kFirst, Rung::kReattempt, "most do not come back"},
    {Symptom::kHang, When::kAgain, Rung::kDiagnose, "it came back: is a machine behind it?"},
    {Symptom::kHang, When::kAgain, Rung::kRollback, "no machine is: is it the newest code?"},
    {Symptom::kHang, When::kAgain, Rung::kReplay,
     "it is not: groups of nodes replay a step, and two ways of grouping name one"},
    {Symptom::kHang, When::kAlways, Rung::kReattempt, "all rungs were tried, and restarts are left"},
    {Symptom::kNan, When::kOnTrial, Rung::kRollback, "it came with the new version"},
    {Symptom::kNan, When::kHopeless, Rung::kGiveUp, ""},
    {Symptom::kNan, When::kNamed, Rung::kEvict, "a check names the machine behind it"},
    {Symptom::kNan, When::kFirst, Rung::kReattempt, "a number that was damaged once does not come back"},
    {Symptom::kNan, When::kAgain, Rung::kDiagnose, "it came back: does a machine compute wrongly?"},
    {Symptom::kNan, When::kAgain, Rung::kRollback, "none does: is it the newest code?"},
    {Symptom::kNan, When::kAgain, Rung::kReplay,
     "it is not: groups of nodes replay a step, and two ways of grouping name one"},
    {Symptom::kNan, When::kAlways, Rung::kReattempt, "all rungs were tried, and restarts are left"},
    {Symptom::kUpdate, When::kOnTrial, Rung::kRollback, "it came with the new version"},
    {Symptom::kUpdate, When::kAlways, Rung::kReattempt, "the next epoch runs the new version"},
    {Symptom::kOurs, When::kHopeless, Rung::kGiveUp, ""},
    {Symptom::kOurs, When::kAlways, Rung::kReattempt, "nothing is wrong with the job"},
};

constexpr std::array<const char*, kRungs> kRungNames = {"note",     "reattempt", "evict",  "diagnose",
                                                        "rollback", "replay",    "give_up"};
constexpr std::array<const char*, kSymptoms> kSymptomNames = {"machine", "network", "node_lost", "program", "crash",
                                                              "hang",    "nan",     "update",    "ours"};
constexpr std::array<const char*, kRoles> kRoleNames = {"inspection", "diagnosis", "replay", "loss"};

std::string WhenText(When when) {
  constexpr std::array<const char*, 7> kTexts = {"always",
                                                 "a node is named",
                                                 "several nodes complain",
                                                 "no restart can help, or none is left",
                                                 "the first of its kind for ladder.again_within_s",
                                                 "again within ladder.again_within_s",
                                                 "a new version has not made update.steps steps, and no node is named"};
  return kTexts[static_cast<size_t>(when)];
}

bool Applies(When when, const FaultFacts& facts) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kNamed:
      return !facts.culprits.empty();
    case When::kWidespread:
      return facts.widespread;
    case When::kHopeless:
      return !facts.hopeless.empty();
    case When::kFirst:
      return facts.tried.empty();
    case When::kAgain:
      return !facts.tried.empty();
    case When::kOnTrial:
      return facts.on_trial && facts.culprits.empty();
  }
  return false;
}

bool MayEvict(const Policy& policy, Role role) {
  return std::find(policy.may_evict.begin(), policy.may_evict.end(), RoleName(role)) != policy.may_evict.end();
}

// Why this node can't go, as one of so many that are to; empty: it can. What would be so whoever waits comes first, for
// another machine is asked for only where it would help. A node that is lost is gone whatever we decide: no cap holds
// it back.
std::string WhyNot(const Policy& policy, const FaultFacts& facts, const Culprit& culprit, int others) {
  if (!MayEvict(policy, culprit.role))
    return fmt::format("eviction.may_evict does not have {}", RoleName(culprit.role));
  if (policy.dry_run) return "dry run: it would be done";
  if (culprit.leads)
    return fmt::format("the coordinator runs on node {}; `lockstep coordinator` needs no node", culprit.name);
  const bool lost = culprit.role == Role::kLoss;
  if (!lost && facts.evicted_last_hour + others >= policy.evictions_per_hour)
    return fmt::format("the cap of {} evictions an hour is reached", policy.evictions_per_hour);
  if (!culprit.replaceable) return fmt::format("no standby waits that could take the place of node {}", culprit.name);
  const int left = facts.nodes + facts.standbys - others - 1;
  if (!lost && left < policy.least_machines)
    return fmt::format("{} machines would be left, and eviction.least_machines is {}", left, policy.least_machines);
  return "";
}

bool WasTried(const FaultFacts& facts, Rung rung) {
  return std::find(facts.tried.begin(), facts.tried.end(), rung) != facts.tried.end();
}

// Why a rung other than an eviction can't be taken; empty: it can.
std::string Obstacle(const Policy& policy, const FaultFacts& facts, Rung rung) {
  if (rung == Rung::kNote || rung == Rung::kReattempt || rung == Rung::kGiveUp) return "";
  const bool off = (rung == Rung::kDiagnose && !policy.diagnose) || (rung == Rung::kReplay && !policy.replay) ||
                   (rung == Rung::kRollback && !policy.rollback);
  if (off) return fmt::format("ladder.{} is off", RungName(rung));
  if (rung == Rung::kRollback && !facts.can_roll_back) return "there is no earlier version of the code";
  if (rung == Rung::kRollback && facts.spent) return "no restart is left";
  if (rung == Rung::kReplay && facts.nodes < 2) return "it compares nodes, and the job has one";
  const bool of_another_version = rung == Rung::kRollback && facts.on_trial;
  if (WasTried(facts, rung) && !of_another_version) return "it was tried, and did not help";
  return policy.dry_run ? "dry run: it would be done" : "";
}

// Those of the culprits that may go, and in `decision` why the others may not.
std::vector<int> Pick(const Policy& policy, const FaultFacts& facts, Decision& decision) {
  std::vector<int> nodes;
  for (const Culprit& culprit : facts.culprits) {
    const std::string why_not = WhyNot(policy, facts, culprit, static_cast<int>(nodes.size()));
    if (why_not.empty()) {
      nodes.push_back(culprit.node);
      continue;
    }
    if (!culprit.replaceable && why_not.starts_with("no standby")) ++decision.machines_wanted;
    decision.refused.push_back({Rung::kEvict, fmt::format("node {}: {}", culprit.name, why_not)});
  }
  return nodes;
}

bool IsPossible(const Policy& policy, const FaultFacts& facts, const Row& row, Decision& decision) {
  if (row.rung == Rung::kEvict) {
    decision.nodes = Pick(policy, facts, decision);
    return !decision.nodes.empty();
  }
  std::string obstacle = Obstacle(policy, facts, row.rung);
  if (obstacle.empty()) return true;
  decision.refused.push_back({row.rung, std::move(obstacle)});
  return false;
}

std::string NamedText(const FaultFacts& facts, const std::vector<int>& nodes) {
  std::string text;
  for (const Culprit& culprit : facts.culprits) {
    if (std::find(nodes.begin(), nodes.end(), culprit.node) == nodes.end()) continue;
    text += fmt::format("{}node {}: {}", text.empty() ? "" : "; ", culprit.name, culprit.why);
  }
  return text;
}

std::string Reason(const Policy& policy, const FaultFacts& facts, const Row& row, const Decision& decision) {
  const char* symptom = SymptomName(facts.symptom);
  switch (row.when) {
    case When::kHopeless:
      return facts.hopeless;
    case When::kNamed:
      return fmt::format("{} ({})", row.because, NamedText(facts, decision.nodes));
    case When::kFirst:
      return fmt::format("the first {} in {:g} s of training: {}", symptom, policy.again_within.value, row.because);
    case When::kAgain:
      return fmt::format("another {} after {:.3g} s of training: {}", symptom,
                         facts.ran_since.value_or(Seconds{}).value, row.because);
    case When::kAlways:
    case When::kWidespread:
    case When::kOnTrial:
      break;
  }
  return row.because;
}

}  // namespace

const char* RungName(Rung rung) { return kRungNames[static_cast<size_t>(rung)]; }
const char* SymptomName(Symptom symptom) { return kSymptomNames[static_cast<size_t>(symptom)]; }
const char* RoleName(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

std::optional<Role> RoleFromName(std::string_view name) {
  const auto found = std::find(kRoleNames.begin(), kRoleNames.end(), name);
  if (found == kRoleNames.end()) return std::nullopt;
  return static_cast<Role>(found - kRoleNames.begin());
}

std::optional<Rung> RungFromName(std::string_view name) {
  const auto found = std::find(kRungNames.begin(), kRungNames.end(), name);
  if (found == kRungNames.end()) return std::nullopt;
  return static_cast<Rung>(found - kRungNames.begin());
}

Decision Decide(const Policy& policy, const FaultFacts& facts) {
  Decision decision;
  for (const Row& row : kTable) {
    if (row.symptom != facts.symptom || !Applies(row.when, facts)) continue;
    if (!IsPossible(policy, facts, row, decision)) continue;
    decision.rung = row.rung;
    decision.reason = Reason(policy, facts, row, decision);
    return decision;
  }
  LS_CHECK(false, "no row for {}", SymptomName(facts.symptom));
  return decision;
}

Json PolicyReport(const Policy& policy) {
  Json table = Json::array();
  for (const Row& row : kTable) {
    table.push_back({{"symptom", SymptomName(row.symptom)},
                     {"when", WhenText(row.when)},
                     {"rung", RungName(row.rung)},
                     {"because", row.because}});
  }
  return {{"policy", ToJson(policy)}, {"table", std::move(table)}};
}

}  // namespace lockstep::control
