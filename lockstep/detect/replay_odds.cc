#include "lockstep/detect/replay_odds.h"

#include <algorithm>
#include <cmath>

namespace lockstep::detect {
namespace {

constexpr double kDecisions = 6;  // two faults, three rounds

// P[Bin(runs, chance) < limit]
double FewerThan(int limit, int runs, double chance) {
  if (chance >= 1) return runs < limit ? 1 : 0;
  if (chance <= 0) return limit > 0 ? 1 : 0;
  // In logarithms: of many runs the first terms are too small for a number.
  double log_term = runs * std::log1p(-chance), sum = 0;
  for (int i = 0; i < std::min(limit, runs + 1); ++i) {
    sum += std::exp(log_term);
    log_term += std::log(chance) - std::log1p(-chance) + std::log(double(runs - i)) - std::log(i + 1.0);
  }
  return std::min(sum, 1.0);
}

}  // namespace

absl::Status ReplayOdds::Validate() const {
  if (!(reproduces > 0 && reproduces <= 1))
    return InvalidArgument("the chance to reproduce must be above 0 and at most 1, found {}", reproduces);
  if (!(false_alarm >= 0 && false_alarm < reproduces)) {
    return InvalidArgument("the chance of a false alarm must be at least 0 and below that to reproduce ({}), found {}",
                           reproduces, false_alarm);
  }
  if (!(error > 0 && error <= 0.5)) return InvalidArgument("error must be above 0 and at most 0.5, found {}", error);
  return absl::OkStatus();
}

double MissChance(const ReplayRule& rule, double reproduces) { return FewerThan(rule.failures, rule.runs, reproduces); }

double AlarmChance(const ReplayRule& rule, double false_alarm) {
  return 1 - FewerThan(rule.failures, rule.runs, false_alarm);
}

absl::StatusOr<ReplayRule> RuleFor(const ReplayOdds& odds, int groups) {
  LS_RETURN_IF_ERROR(odds.Validate());
  const double miss = odds.error / kDecisions, alarm = odds.error / groups;
  ReplayRule rule;
  for (; rule.runs <= kMostReplays; ++rule.runs) {
    while (rule.failures < rule.runs && AlarmChance(rule, odds.false_alarm) > alarm) ++rule.failures;
    if (AlarmChance(rule, odds.false_alarm) <= alarm && MissChance(rule, odds.reproduces) <= miss) return rule;
  }
  return InvalidArgument(
      "a fault that shows in {} of the runs, with {} false alarms, takes more than {} runs for an error of {}",
      odds.reproduces, odds.false_alarm, kMostReplays, odds.error);
}

}  // namespace lockstep::detect
