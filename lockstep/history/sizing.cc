#include "lockstep/history/sizing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/cost/chance.h"
#include "lockstep/cost/standby.h"
#include "lockstep/history/tables.h"

namespace lockstep::history {
namespace {

constexpr double kDay = 86400, kConfidence = 0.95, kQuantile = 0.99;

int64_t DayOf(Nanos wall) { return static_cast<int64_t>(std::floor(ToSeconds(wall).value / kDay)); }

struct Losses {
  int64_t nodes = 0;
  double node_days = 0;
  std::map<int64_t, int64_t> by_day;  // UTC days on which a job ran
};

Losses LossesOf(const std::vector<RunFacts>& runs) {
  Losses losses;
  for (const RunFacts& run : runs) {
    for (const Stay& stay : run.stays) losses.node_days += ToSeconds(stay.to - stay.from).value / kDay;
    for (int64_t day = DayOf(run.begin); day <= DayOf(run.end); ++day) losses.by_day.try_emplace(day, 0);
    for (const Incident& incident : run.incidents) {
      if (incident.drill) continue;
      losses.nodes += incident.nodes_lost;
      losses.by_day[DayOf(incident.opened)] += incident.nodes_lost;
    }
  }
  return losses;
}

// Of those that were resolved like this; null: none was.
Json MeanTime(const std::vector<RunFacts>& runs, Resolution resolution) {
  double sum = 0;
  int64_t count = 0;
  for (const RunFacts& run : runs)
    for (const Incident& incident : run.incidents)
      if (!incident.drill && incident.resolution == resolution) sum += ResolutionTime(incident.phases).value, ++count;
  return count > 0 ? Json(sum / static_cast<double>(count)) : Json();
}

double ChanceOfADay(double rate) { return -std::expm1(-rate); }

Json SeenJson(const Losses& losses) {
  std::vector<int64_t> counts;
  for (const auto& [day, count] : losses.by_day) counts.push_back(count);
  const int64_t most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  return {{"days", counts.size()},
          {"most_in_a_day", most},
          {"quantile", cost::ObservedQuantile(std::move(counts), kQuantile)}};
}

}  // namespace

Json SizingReport(const std::vector<RunFacts>& runs, const SizingOptions& options) {
  const Losses losses = LossesOf(runs);
  cost::StandbySpec spec;
  spec.machines = options.machines.value_or(0);
  if (!options.machines)
    for (const RunFacts& run : runs) spec.machines = std::max(spec.machines, run.MostNodes());
  const cost::Limits limits = cost::PoissonLimits(losses.nodes, kConfidence);
  const bool any = losses.node_days > 0;
  const double rate = any ? static_cast<double>(losses.nodes) / losses.node_days : 0;
  const double high = any ? ChanceOfADay(limits.high / losses.node_days) : 1;
  spec.daily_rate = ChanceOfADay(rate);
  const auto enough = [&](double chance) { return cost::StandbysPerDay(spec.machines, chance, kQuantile); };
  Json report = {{"machines", spec.machines},
                 {"nodes_lost", losses.nodes},
                 {"node_days", losses.node_days},
                 {"daily_rate", spec.daily_rate},
                 {"daily_rate_low", any ? ChanceOfADay(limits.low / losses.node_days) : 0},
                 {"daily_rate_high", high}};
  const double per_s = rate * static_cast<double>(spec.machines) / kDay;
  report["enough"] = {
      {"per_day", enough(spec.daily_rate)},
      {"per_day_at_high", enough(high)},
      {"while_replaced",
       options.replace ? Json(cost::StandbysWhileReplaced(per_s, *options.replace, kQuantile)) : Json()}};
  report["seen"] = SeenJson(losses);
  const Json evict_s = MeanTime(runs, Resolution::kEvict);
  report["times"] = {{"evict_s", evict_s}, {"restart_s", MeanTime(runs, Resolution::kRestart)}};
  report["scheduling"] = Json();
  if (!options.reschedule) return report;
  if (evict_s.is_null()) {
    report["scheduling_lacks"] = "no machine was replaced by a standby, so it is not known how long that takes";
    return report;
  }
  spec.times = {Seconds{evict_s.get<double>()}, *options.reschedule, Seconds{0}, options.requeue};
  report["scheduling"] = cost::SchedulingJson(spec, enough(spec.daily_rate));
  return report;
}

}  // namespace lockstep::history
