#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "lockstep/stage/stream.h"

namespace {

// Upper tail of the chi-squared distribution by Wilson and Hilferty: ((x/n)^(1/3) is nearly normal.
double UpperTail(double chi2, double n) {
  const double z = (std::cbrt(chi2 / n) - (1 - 2 / (9 * n))) / std::sqrt(2 / (9 * n));
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

// Which indices are in the reservoir after `steps`.
std::vector<uint64_t> Reservoir(uint64_t seed, uint64_t steps, uint32_t k) {
  std::vector<uint64_t> kept(k, UINT64_MAX);
  for (uint64_t index = 0; index < steps; ++index) {
    const uint32_t place = ls_reservoir_place(seed, index, k);
    if (place != LS_NO_PLACE) kept.at(place) = index;
  }
  return kept;
}

TEST(Reservoir, FillsUpFirst) {
  for (uint64_t index = 0; index < 8; ++index) EXPECT_EQ(index, ls_reservoir_place(3, index, 8));
}

TEST(Reservoir, IsAPureFunctionOfSeedAndIndex) {
  EXPECT_EQ(Reservoir(5, 1000, 16), Reservoir(5, 1000, 16));
  EXPECT_NE(Reservoir(5, 1000, 16), Reservoir(6, 1000, 16));
}

// Each of 20 seeds: k=20 of 1,000 steps, 2,000 reservoirs of derived seeds; how often steps of each 50th are in one.
// Under uniformity each bin expects 2,000 * 20 / 50 = 800. The variance of a bin is a little below multinomial
// (draws without replacement), by 1 - 20/1000: the test is that much milder.
TEST(Reservoir, IsUniformOverAllStepsSoFar) {
  constexpr int kBins = 50;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<double> count(kBins);
    for (uint64_t run = 0; run < 2000; ++run) {
      for (const uint64_t index : Reservoir(seed * 1'000'003 + run, 1000, 20)) ++count[index / (1000 / kBins)];
    }
    double chi2 = 0;
    for (const double found : count) chi2 += (found - 800) * (found - 800) / 800;
    EXPECT_GT(UpperTail(chi2, kBins - 1), 0.001) << "seed " << seed << ", chi2 " << chi2;
    EXPECT_LT(UpperTail(chi2, kBins - 1), 0.9999) << "seed " << seed << ": too even for chance, chi2 " << chi2;
  }
}

// 50 bins of 800 +- 80: chi2 = 50 * 80^2 / 800 = 400, if half of the bins have a tenth too many and half too few.
TEST(UpperTail, SeesABias) {
  EXPECT_LT(UpperTail(400, 49), 1e-9);
  EXPECT_NEAR(0.05, UpperTail(66.34, 49), 0.001);  // tabulated
}

}  // namespace
