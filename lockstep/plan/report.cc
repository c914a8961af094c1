#include "lockstep/plan/report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/plan/fit.h"
#include "lockstep/plan/interval.h"
#include "lockstep/plan/sensitivity.h"

namespace lockstep::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024, kJoulesPerKwh = 3.6e6;

double TokensPerSecond(const Candidate& one) {
  return double(one.workload.global_batch) * one.workload.sequence / one.step.total().value;
}

double ExposedCommunication(const StepTime& step) {
  return step[Part::kTensor] + step[Part::kContext] + step[Part::kExpertExchange] + step[Part::kPipeline] +
         step[Part::kData];
}

Json KnownOrNull(double value) { return value > 0 ? Json(value) : Json(); }

Json MemoryJson(const Candidate& one) {
  const MemoryUse& use = one.memory;
  return {{"states", use.states / kGiB},
          {"activations", use.activations / kGiB},
          {"logits", use.logits / kGiB},
          {"workspace", use.workspace / kGiB},
          {"context", use.context / kGiB},
          {"total", use.total() / kGiB},
          {"capacity", one.workload.machine.memory / kGiB},
          {"host", use.host / kGiB},
          {"host_capacity", one.workload.machine.host_memory / kGiB}};
}

Json BreakdownJson(const StepTime& step) {
  Json breakdown = Json::object();
  for (size_t i = 0; i < kParts; ++i)
    if (step.seconds[i] != 0) breakdown[PartName(static_cast<Part>(i))] = step.seconds[i];
  return breakdown;
}

}  // namespace

double Mfu(const Workload& w, Seconds step) {
  const double h = w.hidden, tokens = double(w.global_batch) * w.sequence, active = w.ActiveParameters();
  const double scores = 4.0 * w.layers * w.heads * w.ScoreDim() * w.sequence * w.ScoreShare();
  const double passed = 1 - w.LayersBelow() / double(w.layers), warm = 1 - w.frozen.layers / double(w.layers);
  const bool adapts = w.training == Training::kLora;  // gradients of adapters alone, which are small
  const double flops = tokens * (2 * (1 + passed + (adapts ? 0 : warm)) * active + (adapts ? 4 : 6) * h * w.vocabulary +
                                 (1 + 2 * passed) * scores);
  return flops / (w.accelerators * w.machine.bf16 * step.value);
}

double ShareOfPeak(const Workload& w, Seconds step) {
  return Mfu(w, step) * w.machine.bf16 / w.machine.Peak(w.precision);
}

const Rates& RatesOf(const Candidate& one, std::span<const Cluster> clusters) {
  for (const Cluster& cluster : clusters)
    if (cluster.base.machine.name == one.workload.machine.name) return cluster.rates;
  return clusters.front().rates;
}

Json PredictionReport(const Candidate& one, const Rates& rates, bool of_rates) {
  const Workload& w = one.workload;
  const double seconds = one.step.total().value, half = HalfWidthOf(w, rates),
               tokens = double(w.global_batch) * w.sequence;
  Json report = {{"machine", w.machine.name},
                 {"accelerators", w.accelerators},
                 {"stack", w.stack},
                 {"layout", LayoutText(w)},
                 {"fits", one.memory.Fits(w.machine)}};
  if (!one.memory.Fits(w.machine)) report["misfit"] = NeedsText(one);
  report.update({{"step_time_s", seconds},
                 {"lo80", seconds * std::exp(-half)},
                 {"hi80", seconds * std::exp(half)},
                 {"tokens_per_s", TokensPerSecond(one)},
                 {"mfu", Mfu(w, {seconds})},
                 {"exposed_communication_s", ExposedCommunication(one.step)},
                 {"usd_per_step", KnownOrNull(Dollars(one))},
                 {"usd_per_million_tokens", KnownOrNull(Dollars(one) / tokens * 1e6)},
                 {"kwh_per_step", KnownOrNull(Joules(one) / kJoulesPerKwh)},
                 {"memory_gib", MemoryJson(one)},
                 {"breakdown", BreakdownJson(one.step)},
                 {"sensitivities", SensitivitiesJson(w, rates, of_rates)}});
  return report;
}

Json SearchReport(const SearchResult& result, std::span<const Cluster> clusters) {
  Json best = Json::array(), pareto = Json::array();
  for (const Candidate& one : result.best) best.push_back(PredictionReport(one, RatesOf(one, clusters), false));
  for (const Candidate& one : result.pareto)
    pareto.push_back({{"machine", one.workload.machine.name},
                      {"accelerators", one.workload.accelerators},
                      {"layout", LayoutText(one.workload)},
                      {"step_time_s", one.step.total().value},
                      {"memory_gib", one.memory.total() / kGiB},
                      {"usd_per_step", KnownOrNull(Dollars(one))}});
  return {{"candidates", result.tried},
          {"fitting", result.fitting},
          {"stopped", result.stopped},
          {"best", best},
          {"pareto", pareto}};
}

absl::StatusOr<Json> GoodputReport(const Candidate& one, cost::DowntimeSpec failures) {
  LS_RETURN_IF_ERROR(failures.Validate());
  const double more = double(one.workload.accelerators) / failures.accelerators.value_or(one.workload.accelerators);
  const bool fails = failures.failures.value_or(1) > 0;
  if (failures.accelerators && fails) failures = cost::WithFailures(failures, more);
  const cost::Downtime expected = cost::Expect(failures);
  const double useful = expected.useful();
  Json checkpoint = {{"interval_s", failures.checkpoint_interval.value}};
  if (const std::optional<Seconds> best = cost::BestInterval(failures)) {
    cost::DowntimeSpec at_best = failures;
    at_best.checkpoint_interval = *best;
    checkpoint["best_interval_s"] = best->value;
    checkpoint["best_interval_steps"] = std::max(1.0, std::round(best->value / one.step.total().value));
    checkpoint["useful_at_best"] = cost::Expect(at_best).useful();
  }
  return Json{{"useful", useful},
              {"tokens_per_s", useful * TokensPerSecond(one)},
              {"failures_per_day", expected.failures_per_day},
              {"scaled_by", failures.accelerators ? Json(more) : Json()},
              {"checkpoint", checkpoint}};
}

Json ComparisonReport(const Candidate& a, const Candidate& b, const Rates& rates) {
  Json rows = Json::array();
  const auto add = [&](const std::string& term, double of_a, double of_b) {
    if (of_a != 0 || of_b != 0) rows.push_back({{"term", term}, {"a", of_a}, {"b", of_b}, {"b_minus_a", of_b - of_a}});
  };
  for (size_t i = 0; i < kParts; ++i)
    add(fmt::format("{}_s", PartName(static_cast<Part>(i))), a.step.seconds[i], b.step.seconds[i]);
  add("step_time_s", a.step.total().value, b.step.total().value);
  const Json of_a = MemoryJson(a), of_b = MemoryJson(b);
  for (const auto& [kind, gib] : of_a.items())
    if (!kind.ends_with("capacity"))
      add(fmt::format("memory_{}_gib", kind), gib.get<double>(), of_b[kind].get<double>());
  return {{"a", PredictionReport(a, rates, false)}, {"b", PredictionReport(b, rates, false)}, {"difference", rows}};
}

}  // namespace lockstep::plan
