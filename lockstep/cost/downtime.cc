#include "lockstep/cost/downtime.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::cost {
namespace {

constexpr double kDay = 86400, kHour = 3600;
constexpr double kEnough = 1e-4;  // of the time: as good as never without a spare
constexpr int kMostSpares = 100'000, kMostAccelerators = 100'000'000;

// The wait for a spare is that of nodes that fail by chance whenever the job does not wait. While it is down none does,
// so they fail more evenly and it waits less: where it is down for a fifth of the time between failures, 8 % less.
constexpr double kMostDown = 0.2;

// How long the job is down after each failure, but for the wait for a spare.
double DownEach(const DowntimeSpec& spec) { return spec.detect.value + spec.diagnose.value + spec.restart.value; }

// What is lost of a time that ends by chance, after `mean` on average, where every `cycle` of it was saved: all but
// cycle / (e^(cycle / mean) - 1).
double LostEach(double cycle, double mean) {
  const double x = cycle / mean;
  return x < 1e-4 ? cycle * (1.0 / 2 - x / 12) : cycle * (1 / x - 1 / std::expm1(x));
}

// Erlang's B: the share of time in which all of `servers` are busy, from that of one server less.
double Blocked(double load, int servers, double with_one_less) {
  return load * with_one_less / (servers + load * with_one_less);
}

// Failures per second of the time in which the job waits for no spare, but runs or is on its way back: while it is down
// it can't fail.
double RateUnlessWaiting(const DowntimeSpec& spec) {
  if (!spec.failures) return 1 / (spec.between_failures->value + DownEach(spec));
  return *spec.failures / spec.period->value;  // while they were counted it waited for none
}

// Of a job that fails so often unless it waits.
Downtime ExpectAt(const DowntimeSpec& spec, double rate_unless_waiting) {
  Downtime expected;
  if (spec.spares) expected.no_spare = WaitsForSpare(rate_unless_waiting * spec.node_repair->value, *spec.spares);
  const double rate = rate_unless_waiting * (1 - expected.no_spare);
  const double cycle = spec.checkpoint_interval.value + spec.checkpoint_cost.value;
  expected.failures_per_day = rate * kDay;
  expected.lost_work = rate * LostEach(cycle, 1 / rate_unless_waiting - DownEach(spec));
  expected.detect = rate * spec.detect.value;
  expected.diagnose = rate * spec.diagnose.value;
  expected.restart = rate * spec.restart.value;
  expected.checkpoints = (1 - expected.total()) * spec.checkpoint_cost.value / cycle;
  return expected;
}

}  // namespace

absl::Status DowntimeSpec::Validate() const {
  if (failures.has_value() != period.has_value())
    return InvalidArgument("failures are counted over a period: expected both, found one of them");
  if (failures.has_value() == between_failures.has_value())
    return InvalidArgument("expected either failures in a period, or the time between failures, found {}",
                           failures ? "both" : "neither");
  if (failures && !(*failures >= 0 && period->value > 0 && std::isfinite(period->value)))
    return InvalidArgument("expected failures of at least 0 in a period above 0, found {} in {} s", *failures,
                           period->value);
  if (between_failures && !(between_failures->value > 0))
    return InvalidArgument("the time between failures must be above 0, found {} s", between_failures->value);
  const std::pair<const char*, double> times[] = {{"detect", detect.value},
                                                  {"diagnose", diagnose.value},
                                                  {"restart", restart.value},
                                                  {"checkpoint cost", checkpoint_cost.value},
                                                  {"node repair", node_repair.value_or(Seconds{0}).value}};
  for (const auto& [name, seconds] : times)
    if (!(seconds >= 0 && std::isfinite(seconds)))
      return InvalidArgument("{} must be at least 0 s, found {}", name, seconds);
  if (!(checkpoint_interval.value > 0 && std::isfinite(checkpoint_interval.value)))
    return InvalidArgument("the checkpoint interval must be above 0 s, found {}", checkpoint_interval.value);
  if (spares && (*spares < 0 || *spares > kMostSpares))
    return InvalidArgument("spares: expected 0 to {}, found {}", kMostSpares, *spares);
  if (spares && !node_repair)
    return InvalidArgument(
        "{} spares: expected how long the repair of a node takes, too (--node-repair-h, or node_repair_h of the file)",
        *spares);
  if (const double rate = RateUnlessWaiting(*this); !(rate * DownEach(*this) < 1))
    return InvalidArgument("{:.4g} failures a day after which the job is down for {:.4g} h leave no time to train",
                           rate * kDay, DownEach(*this) / kHour);
  return absl::OkStatus();
}

absl::StatusOr<DowntimeSpec> ReadDowntimeSpec(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  DowntimeSpec spec;
  cluster::TableReader in(root, path);
  using cluster::Sign;
  in.Number("failures", Sign::kNotNegative, spec.failures);
  in.Number("period_days", Sign::kPositive, spec.period, kDay);
  in.Number("between_failures_h", Sign::kPositive, spec.between_failures, kHour);
  in.Integer("accelerators", {.least = 1, .most = kMostAccelerators}, spec.accelerators);
  in.Number("detect_s", Sign::kNotNegative, spec.detect);
  in.Number("diagnose_s", Sign::kNotNegative, spec.diagnose);
  in.Number("restart_s", Sign::kNotNegative, spec.restart);
  in.Number("checkpoint_interval_s", Sign::kPositive, spec.checkpoint_interval);
  in.Number("checkpoint_cost_s", Sign::kNotNegative, spec.checkpoint_cost);
  in.Integer("spares", {.least = 0, .most = kMostSpares}, spec.spares);
  in.Number("node_repair_h", Sign::kNotNegative, spec.node_repair, kHour);
  LS_RETURN_IF_ERROR(in.Finish());
  return spec;
}

DowntimeSpec WithFailures(DowntimeSpec spec, double times) {
  spec.between_failures = Seconds{(1 / RateUnlessWaiting(spec) - DownEach(spec)) / times};
  spec.failures.reset(), spec.period.reset();
  return spec;
}

double WaitsForSpare(double load, int spares) {
  // With n of its nodes away it runs as long as n is no more than there are spares. Away are 0 to spares + 1, each
  // comes back after the repair; the share of time with all of these away is Erlang's B.
  double blocked = 1;
  for (int servers = 1; servers <= spares + 1 && blocked > 0; ++servers) blocked = Blocked(load, servers, blocked);
  return blocked;
}

std::optional<int> EnoughSpares(const DowntimeSpec& spec) {
  const double load = RateUnlessWaiting(spec) * spec.node_repair->value;
  double blocked = 1;
  for (int spares = -1; spares <= kMostSpares; ++spares) {
    if (blocked <= kEnough) return std::max(0, spares);
    blocked = Blocked(load, spares + 2, blocked);
  }
  return std::nullopt;
}

Downtime Expect(const DowntimeSpec& spec) { return ExpectAt(spec, RateUnlessWaiting(spec)); }

std::optional<Seconds> BestInterval(const DowntimeSpec& spec) {
  const double cost = spec.checkpoint_cost.value, rate = RateUnlessWaiting(spec);
  if (cost == 0 || rate == 0) return std::nullopt;
  // Useful time has one maximum over the interval: golden section on its logarithm.
  const auto useful = [&](double logarithm) {
    DowntimeSpec other = spec;
    other.checkpoint_interval.value = std::exp(logarithm);
    return ExpectAt(other, rate).useful();
  };
  constexpr double kGolden = 0.6180339887498949, kPrecision = 1e-6;
  double low = std::log(cost * 1e-3), high = std::log(std::max(1e9, cost * 1e3));
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
  while (high - low > kPrecision) {
    if (useful(a) >= useful(b)) {
      high = b;
      b = a;
      a = high - kGolden * (high - low);
    } else {
      low = a;
      a = b;
      b = low + kGolden * (high - low);
    }
  }
  return Seconds{std::exp((low + high) / 2)};
}

absl::StatusOr<Json> DowntimeReport(const DowntimeSpec& spec) {
  LS_RETURN_IF_ERROR(spec.Validate());
  const Downtime expected = Expect(spec);
  Json report = {
      {"failures_per_day", expected.failures_per_day},
      {"downtime", expected.total()},
      {"useful", expected.useful()},
      {"shares",
       {{"lost_work", expected.lost_work},
        {"detect", expected.detect},
        {"diagnose", expected.diagnose},
        {"restart", expected.restart},
        {"no_spare", expected.no_spare},
        {"checkpoints", expected.checkpoints}}},
      {"checkpoint",
       {{"interval_s", spec.checkpoint_interval.value}, {"best_interval_s", Json()}, {"useful_at_best", Json()}}}};
  if (const std::optional<Seconds> best = BestInterval(spec)) {
    DowntimeSpec other = spec;
    other.checkpoint_interval = *best;
    report["checkpoint"]["best_interval_s"] = best->value;
    report["checkpoint"]["useful_at_best"] = Expect(other).useful();
  }
  report["spares"] = Json();
  if (spec.node_repair) {
    const std::optional<int> enough = EnoughSpares(spec);
    const double load = RateUnlessWaiting(spec) * spec.node_repair->value;
    const int most = enough.value_or(kMostSpares);
    Json waiting = Json::array();
    for (int spares = 0; spares <= most; spares += std::max(1, most / 8))
      waiting.push_back({{"spares", spares}, {"share", WaitsForSpare(load, spares)}});
    report["spares"] = {{"given", spec.spares ? Json(*spec.spares) : Json()},
                        {"enough", enough ? Json(*enough) : Json()},
                        {"waiting", waiting}};
    const double between = 1 / RateUnlessWaiting(spec) - DownEach(spec);
    if (DownEach(spec) > kMostDown * between)
      report["notes"] = Json::array({fmt::format(
          "after each failure the job is down {:.2g} times as long as it runs between two: beyond {:.2g} the waits "
          "for a spare are overestimated by more than 8 %, and the useful time is underestimated with them",
          DownEach(spec) / between, kMostDown)});
  }
  return report;
}

}  // namespace lockstep::cost
