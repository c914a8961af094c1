#include "lockstep/cost/chance.h"

#include <math.h>

#include <algorithm>
#include <functional>

namespace lockstep::cost {
namespace {

constexpr double kDeviations = 40;       // what lies further from the mean is below 1e-300
constexpr double kRounding = 1 - 1e-12;  // a sum that is the quantile but for its last digits has reached it

// Not std::lgamma, which writes a global.
double LogFactorial(int64_t n) {
  int sign = 0;
  return lgamma_r(static_cast<double>(n) + 1, &sign);
}

double LogBinomial(int64_t trials, double chance, int64_t count) {
  const auto hits = static_cast<double>(count), misses = static_cast<double>(trials - count);
  return LogFactorial(trials) - LogFactorial(count) - LogFactorial(trials - count) +
         (count > 0 ? hits * std::log(chance) : 0) + (misses > 0 ? misses * std::log1p(-chance) : 0);
}

double LogPoisson(double mean, int64_t count) {
  return (count > 0 ? static_cast<double>(count) * std::log(mean) : 0) - mean - LogFactorial(count);
}

using LogTerm = std::function<double(int64_t)>;

int64_t Quantile(const LogTerm& log_term, double mean, double deviation, int64_t most, double quantile) {
  auto count = std::max<int64_t>(0, static_cast<int64_t>(mean - kDeviations * (deviation + 1)));
  double sum = std::exp(log_term(count));
  while (sum < quantile * kRounding && count < most) {
    const double term = std::exp(log_term(++count));
    sum += term;
    // Beyond the mean terms fall: what is left of them is less than the sum can tell.
    if (static_cast<double>(count) > mean && term <= sum * 1e-18) break;
  }
  return count;
}

// Of the tail that is the smaller one, and the other by the complement: small chances keep their digits.
double AtLeast(const LogTerm& log_term, double mean, int64_t most, int64_t count) {
  if (count <= 0) return 1;
  if (count > most) return 0;
  double sum = 0;
  if (static_cast<double>(count) <= mean) {
    for (int64_t below = count - 1; below >= 0; --below) {
      const double term = std::exp(log_term(below));
      sum += term;
      if (term <= sum * 1e-18) break;
    }
    return std::max(0.0, 1 - sum);
  }
  for (int64_t k = count; k <= most; ++k) {
    const double term = std::exp(log_term(k));
    sum += term;
    if (term <= sum * 1e-18) break;
  }
  return std::min(1.0, sum);
}

// The mean at which `chance`, which rises with it, is `wanted`.
double MeanWhere(const std::function<double(double)>& chance, double wanted, double high) {
  double low = 0;
  while (chance(high) < wanted) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-13 * high; ++i) {
    const double middle = (low + high) / 2;
    (chance(middle) < wanted ? low : high) = middle;
  }
  return (low + high) / 2;
}

constexpr int64_t kNoEnd = INT64_MAX - 1;

}  // namespace

int64_t BinomialQuantile(int64_t trials, double chance, double quantile) {
  if (chance <= 0) return 0;
  if (chance >= 1) return trials;
  const double mean = static_cast<double>(trials) * chance;
  return Quantile([=](int64_t count) { return LogBinomial(trials, chance, count); }, mean,
                  std::sqrt(mean * (1 - chance)), trials, quantile);
}

double BinomialExactly(int64_t trials, double chance, int64_t count) {
  if (count < 0 || count > trials) return 0;
  if (chance <= 0 || chance >= 1) return count == (chance <= 0 ? 0 : trials) ? 1 : 0;
  return std::exp(LogBinomial(trials, chance, count));
}

double BinomialAtLeast(int64_t trials, double chance, int64_t count) {
  if (chance <= 0) return count <= 0 ? 1 : 0;
  if (chance >= 1) return count <= trials ? 1 : 0;
  return AtLeast([=](int64_t k) { return LogBinomial(trials, chance, k); }, static_cast<double>(trials) * chance,
                 trials, count);
}

int64_t PoissonQuantile(double mean, double quantile) {
  if (mean <= 0) return 0;
  return Quantile([=](int64_t count) { return LogPoisson(mean, count); }, mean, std::sqrt(mean), kNoEnd, quantile);
}

double PoissonAtLeast(double mean, int64_t count) {
  if (mean <= 0) return count <= 0 ? 1 : 0;
  return AtLeast([=](int64_t k) { return LogPoisson(mean, k); }, mean, kNoEnd, count);
}

Limits PoissonLimits(int64_t count, double confidence) {
  const double tail = (1 - confidence) / 2, start = static_cast<double>(count) + 1;
  Limits limits;
  if (count > 0) limits.low = MeanWhere([=](double mean) { return PoissonAtLeast(mean, count); }, tail, start);
  limits.high = MeanWhere([=](double mean) { return PoissonAtLeast(mean, count + 1); }, 1 - tail, start);
  return limits;
}

}  // namespace lockstep::cost
