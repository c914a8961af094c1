#include "lockstep/plan/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lockstep/plan/rate_fit.h"

namespace lockstep::plan {
namespace {

constexpr uint64_t kFolds = 5;
constexpr double kCovered = .8;
constexpr double kFewRuns = 10;  // of a family: so many runs of all families are added to its own

double Residual(const MeasuredRun& run, const Calibration& calibration) {
  const std::optional<Rates> rates = calibration.Of(run.workload());
  return std::log(run.Measured().step_s / PredictedSeconds(run, rates.value_or(Rates{})));
}

// Not std::hash, which differs between libraries.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return hash ^ (hash >> 29);
}

struct Weighed {
  double size = 0, weight = 0;
};

// That which kCovered of the weight does not exceed.
double SpreadOf(std::vector<Weighed> all) {
  std::ranges::sort(all, {}, &Weighed::size);
  double sum = 0, reached = 0;
  for (const Weighed& one : all) sum += one.weight;
  for (const Weighed& one : all) {
    reached += one.weight;
    if (reached >= kCovered * sum) return one.size;
  }
  return all.empty() ? 0 : all.back().size;
}

using Sizes = std::map<std::string, std::vector<double>>;  // of residuals, by family

Sizes ByFamily(const Runs& runs, const std::vector<LeftOut>& left_out) {
  Sizes sizes;
  for (size_t i = 0; i < runs.size(); ++i) sizes[runs[i]->family()].push_back(std::abs(left_out[i].residual));
  return sizes;
}

void Add(std::vector<Weighed>& to, const std::vector<double>& sizes, double weight) {
  for (const double size : sizes) to.push_back({size, weight / static_cast<double>(sizes.size())});
}

// Of each family, and of all to which few of its own are added.
std::map<std::string, double> SpreadsOf(const Sizes& sizes) {
  std::map<std::string, double> spreads;
  for (const auto& [family, own] : sizes) {
    std::vector<Weighed> all;
    for (const auto& [name, others] : sizes) Add(all, others, kFewRuns / static_cast<double>(sizes.size()));
    Add(all, own, static_cast<double>(own.size()));
    spreads[family] = SpreadOf(std::move(all));
  }
  return spreads;
}

// Every family is as likely to be like that which comes next.
Interval IntervalOfUnseen(const Runs& runs, std::vector<LeftOut> left_out) {
  std::map<std::string, double> sizes;
  for (const MeasuredRun* run : runs) ++sizes[run->family()];
  for (size_t i = 0; i < runs.size(); ++i) left_out[i].weight = 1 / sizes[runs[i]->family()];
  return FitInterval(left_out);
}

}  // namespace

std::vector<double> Residuals(const Runs& runs, const Calibration& calibration) {
  std::vector<double> residuals;
  for (const MeasuredRun* run : runs) residuals.push_back(Residual(*run, calibration));
  return residuals;
}

double MeanError(const Runs& runs, const Calibration& calibration) {
  double sum = 0;
  for (const double residual : Residuals(runs, calibration)) sum += std::abs(std::expm1(-residual));
  return sum / static_cast<double>(runs.size());
}

Calibration Fit(const Runs& runs, const Known& known, const Calibration* base) {
  RateFit fit(runs, known, base);
  fit.Solve();
  return fit.Result();
}

std::vector<LeftOut> PredictWithout(const Runs& runs, const Known& known, const Calibration* base,
                                    const std::function<std::string(const MeasuredRun&)>& part_of) {
  std::map<std::string, std::vector<size_t>> parts;
  for (size_t i = 0; i < runs.size(); ++i) parts[part_of(*runs[i])].push_back(i);
  std::vector<LeftOut> left_out(runs.size());
  for (const auto& [part, members] : parts) {
    Runs kept;
    for (const MeasuredRun* run : runs)
      if (part_of(*run) != part) kept.push_back(run);
    const Calibration calibration = Fit(kept, known, base);
    for (const size_t i : members) {
      const Rates rates = calibration.Of(runs[i]->workload()).value_or(Rates{});
      left_out[i] = {Residual(*runs[i], calibration), DoubtOf(runs[i]->workload(), rates)};
    }
  }
  return left_out;
}

Calibrated Calibrate(const Runs& all_runs, const Known& known, const Calibration* base) {
  Calibrated all{Fit(all_runs, known, base), {}, {}};
  Calibration& calibration = all.calibration;
  Runs runs;  // whole steps: of parts there is no interval
  for (const MeasuredRun* run : all_runs)
    if (!run->Measured().part) runs.push_back(run);
  const auto fold = [](const MeasuredRun& run) { return std::to_string(HashOf(run.id()) % kFolds); };
  const auto family = [](const MeasuredRun& run) { return run.family(); };
  if (base != nullptr) calibration.spreads = base->spreads;
  all.without_fold = PredictWithout(runs, known, base, fold);
  all.without_family = PredictWithout(runs, known, base, family);
  for (const auto& [name, spread] : SpreadsOf(ByFamily(runs, all.without_fold))) calibration.spreads[name] = spread;
  const Interval unseen = IntervalOfUnseen(runs, all.without_family);
  for (auto& [name, rates] : calibration.hardware) {
    const bool is_known = base != nullptr && base->hardware.contains(name);
    rates.scatter = is_known ? base->hardware.at(name).scatter : unseen.scatter;
    rates.doubt = is_known ? base->hardware.at(name).doubt : unseen.doubt;
  }
  return all;
}

}  // namespace lockstep::plan
