#include "lockstep/cost/standby.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cost/chance.h"

namespace lockstep::cost {
namespace {

constexpr double kDay = 86400, kHour = 3600;
constexpr int64_t kMostMachines = 1'000'000;
constexpr double kMostReplacing = 1e7;  // machines that are being replaced at a moment

double FailuresPerSecond(const StandbySpec& spec) {
  return static_cast<double>(spec.machines) * spec.daily_rate / kDay;
}

int64_t Catastrophe(const StandbySpec& spec) { return std::min(spec.catastrophe, spec.machines); }

Seconds Rescheduled(const SchedulingTimes& times, int64_t machines) {
  return times.reschedule + times.reschedule_each * static_cast<double>(machines - 1);
}

// When `failed` machines are gone at once.
Seconds SchedulingTime(const SchedulingTimes& times, Strategy strategy, int64_t failed, int64_t standbys) {
  switch (strategy) {
    case Strategy::kStandby:
      return failed <= standbys ? times.standby : std::max(times.standby, Rescheduled(times, failed - standbys));
    case Strategy::kReschedule:
      return Rescheduled(times, failed);
    case Strategy::kRequeue:
      return times.requeue.value();
    case Strategy::kOracle:
      return times.standby;
  }
  return {};
}

Json ChancesJson(const StandbySpec& spec, int64_t standbys) {
  constexpr int64_t kShown = 12;
  Json list = Json::array();
  for (int64_t failures = std::max<int64_t>(0, standbys + 2 - kShown); failures <= standbys + 1; ++failures)
    list.push_back(
        {{"failures", failures}, {"share_of_days", BinomialExactly(spec.machines, spec.daily_rate, failures)}});
  return list;
}

}  // namespace

absl::Status StandbySpec::Validate() const {
  if (machines < 1 || machines > kMostMachines)
    return InvalidArgument("machines must be from 1 to {}, found {}", kMostMachines, machines);
  if (!(daily_rate >= 0 && daily_rate <= 1))
    return InvalidArgument(
        "the daily rate is a machine's chance to fail on a day: expected 0 to 1 (or 0 % to 100 %), "
        "found {}",
        daily_rate);
  if (!(quantile > 0 && quantile < 1))
    return InvalidArgument("the quantile must be above 0 and below 1, found {}", quantile);
  if (replace && !(replace->value >= 0))
    return InvalidArgument("the time until a machine is replaced must be at least 0 s, found {}", replace->value);
  if (replace && !(FailuresPerSecond(*this) * replace->value <= kMostReplacing))
    return InvalidArgument(
        "{:.4g} failures a day and {:.4g} h until each is replaced leave more than {:.0f} machines "
        "to replace at a time",
        FailuresPerSecond(*this) * kDay, replace->value / kHour, kMostReplacing);
  if (catastrophe < 1) return InvalidArgument("a catastrophe is of at least 1 machine, found {}", catastrophe);
  if (!times) return absl::OkStatus();
  const std::pair<const char*, double> all[] = {{"standby", times->standby.value},
                                                {"reschedule", times->reschedule.value},
                                                {"reschedule of each further machine", times->reschedule_each.value},
                                                {"requeue", times->requeue.value_or(Seconds{0}).value}};
  for (const auto& [name, seconds] : all)
    if (!(seconds >= 0 && std::isfinite(seconds)))
      return InvalidArgument("{} must be at least 0 s, found {}", name, seconds);
  return absl::OkStatus();
}

absl::StatusOr<StandbySpec> ReadStandbySpec(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  StandbySpec spec;
  std::optional<Seconds> standby, reschedule, each, requeue;
  cluster::TableReader in(root, path);
  using cluster::Sign;
  in.Integer("machines", {.least = 1, .most = kMostMachines}, spec.machines);
  in.Number("daily_rate", Sign::kNotNegative, spec.daily_rate);
  in.Number("quantile", Sign::kPositive, spec.quantile);
  in.Number("replace_h", Sign::kNotNegative, spec.replace, kHour);
  in.Integer("catastrophe_machines", {.least = 1, .most = kMostMachines}, spec.catastrophe);
  in.Number("standby_s", Sign::kNotNegative, standby);
  in.Number("reschedule_s", Sign::kNotNegative, reschedule);
  in.Number("reschedule_each_s", Sign::kNotNegative, each);
  in.Number("requeue_s", Sign::kNotNegative, requeue);
  if (standby.has_value() != reschedule.has_value() || ((each || requeue) && !standby))
    in.Fail("standby_s", "standby_s and reschedule_s are needed for scheduling times: expected both");
  LS_RETURN_IF_ERROR(in.Finish());
  if (standby) spec.times = {*standby, *reschedule, each.value_or(Seconds{0}), requeue};
  return spec;
}

int64_t StandbysPerDay(int64_t machines, double daily_rate, double quantile) {
  return BinomialQuantile(machines, daily_rate, quantile);
}

int64_t StandbysWhileReplaced(double failures_per_s, Seconds replace, double quantile) {
  if (failures_per_s <= 0) return 0;
  return PoissonQuantile(failures_per_s * replace.value, quantile) + 1;
}

int64_t ObservedQuantile(std::vector<int64_t> counts, double quantile) {
  if (counts.empty()) return 0;
  std::sort(counts.begin(), counts.end());
  const double rank = std::ceil(quantile * static_cast<double>(counts.size()) - 1e-9);
  return counts[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

Seconds WeightedSchedulingTime(const StandbySpec& spec, Strategy strategy, int64_t standbys) {
  const int64_t most = std::max<int64_t>(1, StandbysPerDay(spec.machines, spec.daily_rate, spec.quantile));
  double chances = 0, weighted = 0;
  for (int64_t failed = 1; failed <= most; ++failed) {
    // Days on which nothing fails weigh nothing; with a rate of 0, the only failure there can be is that of one.
    const double chance = spec.daily_rate > 0 ? BinomialExactly(spec.machines, spec.daily_rate, failed) : 1;
    chances += chance;
    weighted += chance * SchedulingTime(*spec.times, strategy, failed, standbys).value;
  }
  return {spec.quantile * weighted / chances +
          (1 - spec.quantile) * SchedulingTime(*spec.times, strategy, Catastrophe(spec), standbys).value};
}

Json SchedulingJson(const StandbySpec& spec, int64_t standbys) {
  const double base = WeightedSchedulingTime(spec, Strategy::kStandby, standbys).value;
  Json list = Json::array();
  const auto add = [&](const char* name, Strategy strategy) {
    const double was = WeightedSchedulingTime(spec, strategy, standbys).value;
    list.push_back({{"strategy", name}, {"was_s", was}, {"times_standby", base > 0 ? Json(was / base) : Json()}});
  };
  add("standby", Strategy::kStandby);
  add("reschedule", Strategy::kReschedule);
  if (spec.times->requeue) add("requeue", Strategy::kRequeue);
  add("oracle", Strategy::kOracle);
  return list;
}

absl::StatusOr<Json> StandbyReport(const StandbySpec& spec) {
  LS_RETURN_IF_ERROR(spec.Validate());
  const int64_t per_day = StandbysPerDay(spec.machines, spec.daily_rate, spec.quantile);
  Json report = {
      {"machines", spec.machines},
      {"daily_rate", spec.daily_rate},
      {"failures_per_day", FailuresPerSecond(spec) * kDay},
      {"quantile", spec.quantile},
      {"standbys",
       {{"per_day", per_day},
        {"while_replaced",
         spec.replace ? Json(StandbysWhileReplaced(FailuresPerSecond(spec), *spec.replace, spec.quantile)) : Json()},
        {"replace_h", spec.replace ? Json(spec.replace->value / kHour) : Json()}}},
      {"chances", ChancesJson(spec, per_day)},
      {"catastrophe",
       {{"machines", Catastrophe(spec)}, {"not_covered", std::max<int64_t>(0, Catastrophe(spec) - per_day)}}}};
  report["scheduling"] = spec.times ? SchedulingJson(spec, per_day) : Json();
  return report;
}

}  // namespace lockstep::cost
