#include "lockstep/plan/validate.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/plan/interval.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/report.h"
#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr size_t kLeastGroup = 5;
constexpr double kFar = 20;  // times: no run whose figures were in their units has been as far off

struct Predicted {
  const MeasuredRun* run = nullptr;
  double step_s = 0, low_s = 0, high_s = 0;
  MemoryUse memory{};
  double error() const { return step_s / run->Measured().step_s - 1; }
  bool covers() const { return low_s <= run->Measured().step_s && run->Measured().step_s <= high_s; }
};
using All = std::vector<Predicted>;

double At(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

void AddErrors(Json& to, const All& all) {
  for (const char* key : {"mape", "median", "p90", "bias", "coverage80"}) to[key] = Json();
  if (all.empty()) return;
  std::vector<double> errors;
  double sum = 0, covered = 0;
  for (const Predicted& one : all) {
    errors.push_back(std::abs(one.error()));
    sum += one.error();
    covered += one.covers();
  }
  std::sort(errors.begin(), errors.end());
  double mean = 0;
  for (const double error : errors) mean += error;
  const double n = static_cast<double>(all.size());
  to["mape"] = mean / n;
  to["median"] = At(errors, .5);
  to["p90"] = At(errors, .9);
  to["bias"] = sum / n;
  to["coverage80"] = covered / n;
}

constexpr double kGiB = 1024.0 * 1024 * 1024;

bool MayFit(const Predicted& one) { return one.memory.MayFit(one.run->workload().machine); }

Json MemoryErrors(const All& all) {
  double error = 0;
  int n = 0, right = 0, labels = 0, rejected = 0;
  for (const Predicted& one : all) {
    const MeasuredRun::Values& values = one.run->Measured();
    if (values.memory_gib) {
      const double ours = values.counts_context ? one.memory.total() : one.memory.allocated();
      error += std::abs(ours / kGiB / *values.memory_gib - 1);
      ++n;
    }
    const bool does_not_fit = values.out_of_memory && !one.run->guesses().fit;
    labels += does_not_fit;
    const bool ran = !values.out_of_memory && (values.step_s > 0 || values.memory_gib);
    right += does_not_fit && !MayFit(one);
    rejected += ran && !MayFit(one);
  }
  return {{"n", n},
          {"mape", n > 0 ? Json(error / n) : Json()},
          {"oom_right", right},
          {"oom_total", labels},
          {"feasible_rejected", rejected}};
}

// All that is no layout.
std::string GroupOf(const MeasuredRun& run) {
  const Workload& w = run.workload();
  return fmt::format("{} {} {} x{} L{} h{} f{} a{} s{} b{} {}", run.family(), w.stack, w.machine.name, w.accelerators,
                     w.layers, w.hidden, w.ffn, w.heads, w.sequence, w.global_batch, static_cast<int>(w.precision));
}
std::string LayoutOf(const Workload& w) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", w.tp, w.pp, w.dp, w.cp, w.ep, w.chunks, w.zero,
                     w.microbatch, w.sequence_parallel, static_cast<int>(w.recompute), w.async_tensor, w.row_scales);
}

struct Ranked {
  double predicted = 0, measured = 0, runs = 0;
};

double KendallTau(const std::vector<Ranked>& layouts) {
  double agree = 0, pairs = 0;
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t j = 0; j < i; ++j, ++pairs) {
      const double ours = layouts[i].predicted - layouts[j].predicted;
      const double theirs = layouts[i].measured - layouts[j].measured;
      agree += (ours * theirs > 0) - (ours * theirs < 0);
    }
  }
  return agree / pairs;
}

Json Ranking(const All& all) {
  std::map<std::string, std::map<std::string, Ranked>> groups;
  for (const Predicted& one : all) {
    Ranked& layout = groups[GroupOf(*one.run)][LayoutOf(one.run->workload())];
    layout.predicted = one.step_s;
    layout.measured += one.run->Measured().step_s;
    ++layout.runs;
  }
  Json ranking = Json::array();
  for (const auto& [name, group] : groups) {
    if (group.size() < kLeastGroup) continue;
    std::vector<Ranked> layouts;
    for (const auto& [text, layout] : group)
      layouts.push_back({layout.predicted, layout.measured / layout.runs, layout.runs});
    const double picked = std::ranges::min_element(layouts, {}, &Ranked::predicted)->measured;
    const double best = std::ranges::min_element(layouts, {}, &Ranked::measured)->measured;
    ranking.push_back(
        {{"group", name}, {"n", layouts.size()}, {"tau", KendallTau(layouts)}, {"regret", picked / best - 1}});
  }
  return ranking;
}

// Of the logarithm of measured over predicted.
double HalfWidthOf(const MeasuredRun& run, const Calibration& calibration, const Rates& rates) {
  const auto known = calibration.spreads.find(run.family());
  return known == calibration.spreads.end() ? HalfWidthOf(run.workload(), rates) : known->second;
}

std::optional<Predicted> PredictRun(const MeasuredRun& run, const Calibration& calibration) {
  const std::optional<Rates> rates = calibration.Of(run.workload());
  if (!rates) return std::nullopt;
  Predicted one{&run, PredictStep(run.workload(), *rates).total().value};
  const double half = HalfWidthOf(run, calibration, *rates);
  one.low_s = one.step_s * std::exp(-half);
  one.high_s = one.step_s * std::exp(half);
  one.memory = PredictMemory(run.workload());
  return one;
}

}  // namespace

std::vector<SkippedRow> AssumedOf(const MeasuredTable& table, const Calibration& calibration) {
  std::vector<SkippedRow> rows = table.assumed;
  for (const MeasuredRun& run : table.runs) {
    const std::optional<Rates> rates = calibration.Of(run.workload());
    const double measured = run.Measured().step_s;
    if (!rates || measured == 0 || ShareOfPeak(run.workload(), {measured}) > 1) continue;  // the last is told already
    const double predicted = PredictedSeconds(run, *rates), ratio = measured / predicted;
    if (ratio < kFar && ratio > 1 / kFar) continue;
    rows.push_back({run.row(), fmt::format("step_time_s {:g} is {:.3g} times what is predicted ({:.3g}): is it in "
                                           "another unit?",
                                           measured, ratio, predicted)});
  }
  return rows;
}

Json ValidateReport(const MeasuredTable& table, const Calibration& calibration, const ValidateOptions& options) {
  All all, timed;
  Json rows = Json::array(), skipped = Json::array(), assumed = Json::array();
  size_t predicted = 0, unmeasured = 0;
  for (const SkippedRow& row : AssumedOf(table, calibration)) assumed.push_back({{"row", row.row}, {"what", row.why}});
  for (const SkippedRow& row : table.skipped) skipped.push_back({{"row", row.row}, {"why", row.why}});
  for (const MeasuredRun& run : table.runs) {
    const std::optional<Predicted> found = PredictRun(run, calibration);
    if (!found) {
      skipped.push_back({{"row", run.row()}, {"why", "no rates for " + run.workload().machine.name}});
      continue;
    }
    ++predicted;
    const Predicted& one = *found;
    if (options.rows)
      rows.push_back({{"id", run.id()},
                      {"step_time_s", one.step_s},
                      {"lo80", one.low_s},
                      {"hi80", one.high_s},
                      {"mem_gib", one.memory.allocated() / kGiB},
                      {"mem_total_gib", one.memory.total() / kGiB},
                      {"fits", MayFit(one)}});
    all.push_back(one);
    const MeasuredRun::Values& values = run.Measured();
    if (values.step_s > 0) timed.push_back(one);
    unmeasured += values.step_s == 0 && !values.memory_gib && !values.out_of_memory;
  }
  Json report = {{"n", table.runs.size() + table.skipped.size()},
                 {"predicted", predicted},
                 {"unmeasured", unmeasured},
                 {"skipped", skipped},
                 {"assumed", assumed}};
  AddErrors(report, timed);
  std::map<std::string, All> families;
  for (const Predicted& one : timed) families[one.run->family()].push_back(one);
  report["families"] = Json::object();
  for (const auto& [name, family] : families) {
    report["families"][name] = {{"n", family.size()}};
    AddErrors(report["families"][name], family);
  }
  report["memory"] = MemoryErrors(all);
  report["ranking"] = Ranking(timed);
  if (options.rows) report["rows"] = rows;
  return report;
}

}  // namespace lockstep::plan
