#include "lockstep/detect/group_testing.h"

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/detect/evictions.h"

namespace lockstep::detect {
namespace {

constexpr double kSmall = 1e-3;  // a chance that is not worth a line

// By machine, for those that any explanation names.
std::map<int, double> Chances(const Explanations& explanations) {
  std::map<int, double> chances;
  for (const Explanation& one : explanations.list) {
    for (const int x : one.bad) chances[x] += one.chance;
  }
  return chances;
}

// The likeliest set of bad machines, whatever else an explanation holds.
std::pair<Machines, double> LikeliestSet(const Explanations& explanations) {
  std::map<Machines, double> sets;
  for (const Explanation& one : explanations.list) sets[one.bad] += one.chance;
  const auto best =
      std::max_element(sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return *best;
}

std::vector<SuspectMachine> Suspects(const Explanations& explanations) {
  std::vector<SuspectMachine> suspects;
  for (const auto& [machine, chance] : Chances(explanations)) {
    if (chance >= kSmall) suspects.push_back({machine, std::min(chance, 1.0)});
  }
  std::stable_sort(suspects.begin(), suspects.end(), [](const auto& a, const auto& b) { return a.chance > b.chance; });
  return suspects;
}

}  // namespace

absl::Status ReplayLimits::Validate() const {
  if (rounds < 2) return InvalidArgument("a replay takes at least 2 rounds, found a limit of {}", rounds);
  if (!(confidence > 0.5 && confidence < 1))
    return InvalidArgument("confidence must be above 0.5 and below 1, found {}", confidence);
  return absl::OkStatus();
}

GroupTesting::GroupTesting(const ReplayGrid& grid, const ReplayOdds& odds, const ReplayLimits& limits)
    : grid_(grid), odds_(odds), limits_(limits) {}

ReplayRound GroupTesting::Next() const {
  LS_CHECK(!done_, "after round {}", rounds_);
  ReplayRound round{rounds_ + 1, separating_, {}};
  if (rounds_ == 0) round.groups = grid_.Rows();
  if (rounds_ == 1) round.groups = grid_.Columns();
  // Of as many groups as the first two have, so that all rounds have one rule.
  const absl::StatusOr<ReplayRule> rule = RuleFor(odds_, grid_.n);
  LS_CHECK(rule.ok(), "{}", Message(rule.status()));
  round.rule = *rule;
  return round;
}

void GroupTesting::Observe(const ReplayRound& round, const std::vector<GroupOutcome>& outcomes) {
  LS_CHECK(round.groups.size() == outcomes.size(), "{} groups, {} outcomes", round.groups.size(), outcomes.size());
  for (size_t i = 0; i < outcomes.size(); ++i) {
    tested_.push_back({round.groups[i], outcomes[i].runs, outcomes[i].failures});
    reproduced_ |= outcomes[i].failures >= round.rule.failures;
  }
  if (++rounds_ < 2) return;
  explanations_ = Explain(grid_.machines, static_cast<size_t>(grid_.n), tested_, odds_);
  const Machines named = Settled() ? LikeliestSet(explanations_).first : Machines{};
  std::vector<Machines> next = named.empty() ? Separating() : Deal(named, Chances(explanations_));
  // The groups that would confirm it may be those of the round that named them.
  confirmed_ = !named.empty() && (!limits_.confirm || named == confirming_ || next == separating_);
  const bool settled = Settled() && (named.empty() || confirmed_);
  // The same groups tell the same again, if faults always reproduce.
  const bool tells_nothing = next.empty() || (odds_.reproduces == 1 && odds_.false_alarm == 0 && next == separating_);
  done_ = rounds_ >= limits_.rounds || settled || tells_nothing;
  confirming_ = named;
  separating_ = std::move(next);
}

bool GroupTesting::Settled() const {
  return explanations_.complete && LikeliestSet(explanations_).second >= limits_.confidence;
}

// Those of which the explanations say different things, each explanation's together and the likeliest's first.
Machines GroupTesting::Open(const std::map<int, double>& chances) const {
  Machines open;
  std::set<int> seen;
  for (const Explanation& one : explanations_.list) {
    for (const int x : one.bad) {
      const double chance = chances.at(x);
      if (chance > Negligible() && chance < 1 - Negligible() && seen.insert(x).second) open.push_back(x);
    }
  }
  return open;
}

// Machines that are well, to fill groups up with; if there are so many, only such as were in no group that failed: what
// was wrong there may be a link between two of them, and would be once more.
Machines GroupTesting::Fillers(const std::map<int, double>& chances, size_t wanted) const {
  std::set<int> in_failed;
  for (const TestedGroup& group : tested_) {
    if (group.failures > 0) in_failed.insert(group.machines.begin(), group.machines.end());
  }
  Machines well, of_healthy_groups;
  for (int x = 0; x < grid_.machines; ++x) {
    const auto found = chances.find(x);
    if (found != chances.end() && found->second > Negligible()) continue;
    well.push_back(x);
    if (!in_failed.contains(x)) of_healthy_groups.push_back(x);
  }
  return of_healthy_groups.size() >= wanted ? of_healthy_groups : well;
}

// So little that all machines of a group together would not matter.
double GroupTesting::Negligible() const { return (1 - limits_.confidence) / 10 / grid_.m; }

std::vector<Machines> GroupTesting::Separating() const {
  const std::map<int, double> chances = Chances(explanations_);
  return Deal(Open(chances), chances);
}

// A group for each open machine; fewer where there is no room, and then those share one that one explanation blames
// together. They are as large as in the rounds before if there are enough others to fill them, for a fault may need the
// communication of so many to show.
std::vector<Machines> GroupTesting::Deal(Machines open, const std::map<int, double>& chances) const {
  const size_t unit = static_cast<size_t>(grid_.unit);
  const Machines fillers = Fillers(chances, open.size() * (unit - 1));
  const size_t all = open.size() + fillers.size();
  const size_t groups = std::min(open.size(), all / unit);
  if (groups == 0) return {};
  const size_t size = std::min(static_cast<size_t>(grid_.m), all / groups / unit * unit);
  open.resize(std::min(open.size(), groups * size));
  std::vector<Machines> dealt(groups);
  for (size_t i = 0; i < open.size(); ++i) dealt[i * groups / open.size()].push_back(open[i]);
  auto filler = fillers.begin();
  for (Machines& group : dealt) {
    while (group.size() < size) group.push_back(*filler++);
    std::sort(group.begin(), group.end());
  }
  return dealt;
}

MachineVerdict GroupTesting::Verdict() const {
  MachineVerdict verdict;
  const auto [bad, confidence] = LikeliestSet(explanations_);
  verdict.reproduced = reproduced_;
  verdict.bad = bad;
  verdict.confidence = confidence;
  verdict.certain = Settled() && confirmed_ && bad.size() < static_cast<size_t>(grid_.machines);
  verdict.suspects = Suspects(explanations_);
  for (const size_t group : explanations_.list.front().apart) verdict.apart.push_back(tested_[group].machines);
  const Evictions evictions = FindEvictions(explanations_, Chances(explanations_), limits_.confidence);
  // All of them: it may as well be what they run, and nothing would be left.
  if (evictions.machines.size() == static_cast<size_t>(grid_.machines)) return verdict;
  verdict.evict = evictions.machines;
  verdict.evict_confidence = evictions.chance;
  return verdict;
}

absl::StatusOr<GroupTestResult> FindBadMachines(const ReplayGrid& grid, const ReplayOdds& odds,
                                                const ReplayLimits& limits, GroupRunner& runner) {
  LS_RETURN_IF_ERROR(limits.Validate());
  LS_RETURN_IF_ERROR(RuleFor(odds, grid.n).status());
  GroupTesting testing(grid, odds, limits);
  GroupTestResult result{grid, {}, {}, {}};
  while (!testing.Done()) {
    result.rounds.push_back(testing.Next());
    LS_ASSIGN_OR_RETURN(result.outcomes.emplace_back(), runner.RunRound(result.rounds.back()));
    testing.Observe(result.rounds.back(), result.outcomes.back());
  }
  result.verdict = testing.Verdict();
  return result;
}

double MachineMinutes(const GroupTestResult& result) {
  double minutes = 0;
  for (size_t round = 0; round < result.rounds.size(); ++round) {
    for (size_t group = 0; group < result.outcomes[round].size(); ++group) {
      const auto size = static_cast<double>(result.rounds[round].groups[group].size());
      minutes += size * result.outcomes[round][group].took.value / 60;
    }
  }
  return minutes;
}

}  // namespace lockstep::detect
