#include "lockstep/plan/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr double kFar = .25;
constexpr int kStarts = 6;
constexpr double kFirstMove = .2, kLastMove = 5e-4;  // of a rate's range
constexpr double kQuantile = .1;
// What it costs to leave the usual by all of a rate's range: little, but rates on which no run depends stay usual.
constexpr double kUnusual = .004;

double Residual(const MeasuredRun& run, const Rates& rates) {
  return std::log(run.Measured().step_s / PredictStep(run.workload(), rates).total().value);
}

double Cost(double residual) {
  const double error = std::abs(residual);
  return error <= kFar ? error : 2 * std::sqrt(kFar * error) - kFar;
}

// By family, the root of how many there are.
std::vector<double> Weights(const Runs& runs) {
  std::map<std::string, double> sizes;
  for (const MeasuredRun* run : runs) ++sizes[run->family()];
  std::vector<double> weights;
  double sum = 0;
  for (const MeasuredRun* run : runs) weights.push_back(1 / std::sqrt(sizes[run->family()]));
  for (const double weight : weights) sum += weight;
  for (double& weight : weights) weight /= sum;
  return weights;
}

double Error(const Runs& runs, const std::vector<double>& weights, const Rates& rates) {
  static const Rates kUsual;
  double error = 0;
  for (const RateField& field : RateFields()) {
    const double moved = (rates.*field.member - kUsual.*field.member) / (field.most - field.least);
    error += kUnusual * moved * moved;
  }
  for (size_t i = 0; i < runs.size(); ++i) error += weights[i] * Cost(Residual(*runs[i], rates));
  return error;
}

double Descend(const Runs& runs, const std::vector<double>& weights, Rates& rates) {
  double best = Error(runs, weights, rates);
  for (double move = kFirstMove; move > kLastMove;) {
    const double before = best;
    for (const RateField& field : RateFields()) {
      for (const double direction : {1.0, -1.0}) {
        Rates tried = rates;
        double& value = tried.*field.member;
        value = std::clamp(value + direction * move * (field.most - field.least), field.least, field.most);
        const double error = Error(runs, weights, tried);
        if (error >= best) continue;
        best = error;
        rates = tried;
        break;
      }
    }
    if (before - best < 1e-3 * before) move /= 2;
  }
  return best;
}

// Not std::hash, which differs between libraries.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return hash ^ (hash >> 29);
}

double QuantileOf(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace

double MeanError(const Runs& runs, const Rates& rates) { return Error(runs, Weights(runs), rates); }

Rates Fit(const Runs& runs, const Rates& start) {
  const std::vector<double> weights = Weights(runs);
  Rates best = start;
  double least = Descend(runs, weights, best);
  std::mt19937_64 random(1);
  for (int i = 1; i < kStarts; ++i) {
    Rates tried = best;
    for (const RateField& field : RateFields()) {
      const double share = static_cast<double>(random() >> 11) * 0x1p-53;
      double& value = tried.*field.member;
      value = std::clamp(value + .5 * (share - .5) * (field.most - field.least), field.least, field.most);
    }
    const double error = Descend(runs, weights, tried);
    if (error < least) least = error, best = tried;
  }
  return best;
}

std::vector<double> CrossValidate(const Runs& runs, const Rates& start, int folds) {
  std::vector<double> residuals(runs.size());
  for (int fold = 0; fold < folds; ++fold) {
    const auto is_out = [&](const MeasuredRun* run) {
      return HashOf(run->id()) % static_cast<uint64_t>(folds) == static_cast<uint64_t>(fold);
    };
    Runs kept;
    for (const MeasuredRun* run : runs)
      if (!is_out(run)) kept.push_back(run);
    if (kept.empty()) kept = runs;
    const Rates rates = Fit(kept, start);
    for (size_t i = 0; i < runs.size(); ++i)
      if (is_out(runs[i])) residuals[i] = Residual(*runs[i], rates);
  }
  return residuals;
}

Rates Calibrate(const Runs& runs, const Rates& start) {
  const std::vector<double> residuals = CrossValidate(runs, start);
  Rates rates = Fit(runs, start);
  rates.residual_low = QuantileOf(residuals, kQuantile);
  rates.residual_high = QuantileOf(residuals, 1 - kQuantile);
  return rates;
}

}  // namespace lockstep::plan
