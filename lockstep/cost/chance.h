// Exact chances of counts: binomial and Poisson, by sums of terms that are computed as logarithms, so that a million
// machines, or a chance of 1e-300, is no special case. Pure. Cost: a term for each count within 40 standard deviations.
//
//   BinomialQuantile(1024, 0.0012, 0.99)     // 4: on 99 of 100 days no more than 4 of 1024 machines fail
//   PoissonLimits(3, 0.95)                   // {0.62, 8.77}: the means that 3 observed events do not speak against
#pragma once

#include <cstdint>

namespace lockstep::cost {

// The least n with P(X <= n) >= quantile, of X ~ Binomial(trials, chance). Requires trials >= 0, 0 <= chance <= 1 and
// 0 < quantile < 1.
int64_t BinomialQuantile(int64_t trials, double chance, double quantile);
double BinomialExactly(int64_t trials, double chance, int64_t count);  // P(X = count)
double BinomialAtLeast(int64_t trials, double chance, int64_t count);  // P(X >= count)

// The same of X ~ Poisson(mean); requires mean >= 0.
int64_t PoissonQuantile(double mean, double quantile);
double PoissonAtLeast(double mean, int64_t count);

struct Limits {
  double low = 0, high = 0;
};
// Garwood's exact two-sided limits for the mean of which `count` was observed: chi-square(α/2; 2n)/2 and
// chi-square(1 − α/2; 2n + 2)/2, α = 1 − confidence.
Limits PoissonLimits(int64_t count, double confidence);

}  // namespace lockstep::cost
