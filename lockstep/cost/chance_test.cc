#include "lockstep/cost/chance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace lockstep::cost {
namespace {

// P(X = 0), P(X = 1), ... by adding one trial after the other: no factorials, no logarithms.
std::vector<long double> BinomialByTrials(int64_t trials, double chance) {
  std::vector<long double> terms{1};
  for (int64_t trial = 0; trial < trials; ++trial) {
    terms.push_back(0);
    for (size_t count = terms.size() - 1; count > 0; --count)
      terms[count] = terms[count] * (1 - static_cast<long double>(chance)) + terms[count - 1] * chance;
    terms[0] *= 1 - static_cast<long double>(chance);
  }
  return terms;
}

TEST(Binomial, IsTheSumOfItsTrials) {
  std::mt19937_64 seeded(1);
  std::uniform_real_distribution<double> exponent(-6, 0);
  for (int round = 0; round < 200; ++round) {
    const auto trials = static_cast<int64_t>(seeded() % 300);
    const double chance = std::pow(10, exponent(seeded));
    const std::vector<long double> terms = BinomialByTrials(trials, chance);
    long double at_most = 0;
    for (int64_t count = 0; count <= trials; ++count) {
      const auto term = static_cast<double>(terms[static_cast<size_t>(count)]);
      const auto at_least = static_cast<double>(1 - at_most);
      EXPECT_NEAR(BinomialExactly(trials, chance, count), term, 1e-11 * term + 1e-290);
      EXPECT_NEAR(BinomialAtLeast(trials, chance, count), at_least, 1e-12);
      at_most += terms[static_cast<size_t>(count)];
      for (const double quantile : {0.5, 0.99})
        if (std::fabs(at_most - quantile) > 1e-9L) {
          EXPECT_EQ(BinomialQuantile(trials, chance, quantile) <= count, at_most >= quantile)
              << trials << " " << chance << " " << count;
        }
    }
  }
}

// Far tails keep their digits: P(X >= n) = chance^n for n trials.
TEST(Binomial, FarTails) {
  EXPECT_NEAR(BinomialAtLeast(50, 1e-5, 50) / 1e-250, 1, 1e-9);
  EXPECT_EQ(BinomialAtLeast(10, 0.3, 11), 0);
  EXPECT_EQ(BinomialAtLeast(10, 0.3, 0), 1);
  EXPECT_EQ(BinomialAtLeast(10, 1, 10), 1);
  EXPECT_EQ(BinomialExactly(10, 0, 0), 1);
}

// Of many trials it is normal: the quantile is mean + z sqrt(n p q), z(0.99) = 2.3263.
TEST(Binomial, AMillionTrials) {
  EXPECT_NEAR(static_cast<double>(BinomialQuantile(1'000'000, 0.5, 0.99)), 500'000 + 2.3263 * 500, 1.5);
  EXPECT_NEAR(static_cast<double>(BinomialQuantile(1'000'000, 0.0012, 0.99)), 1200 + 2.3263 * std::sqrt(1198.56), 2.5);
  EXPECT_EQ(BinomialQuantile(1'000'000, 0, 0.99), 0);
  EXPECT_EQ(BinomialQuantile(1'000'000, 1, 0.99), 1'000'000);
}

// Where the sum is the quantile exactly, that count is enough: P(X = 0) = 0.99 of one trial of chance 0.01.
TEST(Binomial, AQuantileThatIsJustMet) { EXPECT_EQ(BinomialQuantile(1, 0.01, 0.99), 0); }

// Formula: P(X = k) = mean^k e^-mean / k!, each term from the one before.
TEST(Poisson, IsTheSumOfItsTerms) {
  for (const double mean : {1e-4, 0.3, 1.0, 7.5, 60.0}) {
    long double term = std::exp(static_cast<long double>(-mean)), at_most = 0;
    for (int64_t count = 0; count < 120; ++count) {
      EXPECT_NEAR(PoissonAtLeast(mean, count), static_cast<double>(1 - at_most), 1e-12) << mean << " " << count;
      at_most += term;
      term *= mean / static_cast<long double>(count + 1);
      if (std::fabs(at_most - 0.99L) > 1e-9L) {
        EXPECT_EQ(PoissonQuantile(mean, 0.99) <= count, at_most >= 0.99L) << mean << " " << count;
      }
    }
  }
  EXPECT_EQ(PoissonQuantile(0, 0.99), 0);
  EXPECT_EQ(PoissonAtLeast(0, 1), 0);
}

// Garwood's 95 % limits as printed in tables: none 0 to 3.689, 1: 0.0253 to 5.572, 3: 0.6187 to 8.767, 10: 4.795 to
// 18.39.
// Where terms are too small to add anything, the sum may stay below the quantile for ever.
TEST(Poisson, AQuantileNearOneHasAnEnd) {
  const int64_t quantile = PoissonQuantile(316'082, 0.9999999999);
  EXPECT_GT(quantile, 316'082 + 6 * 562);
  EXPECT_LT(quantile, 316'082 + 20 * 562);
}

TEST(Poisson, LimitsAreThoseOfTheTables) {
  struct Row {
    int64_t count;
    double low, high;
  };
  for (const Row& row : {Row{0, 0, 3.6889}, Row{1, 0.0253, 5.5716}, Row{3, 0.6187, 8.7673}, Row{10, 4.7954, 18.3904}}) {
    const Limits limits = PoissonLimits(row.count, 0.95);
    EXPECT_NEAR(limits.low, row.low, 5e-5) << row.count;
    EXPECT_NEAR(limits.high, row.high, 5e-5) << row.count;
  }
}

// At its limits each tail has half of what is left: P(X >= n; low) = P(X <= n; high) = 0.025.
TEST(Poisson, LimitsLeaveTheirTails) {
  for (const int64_t count : {1, 2, 17, 400, 20'000}) {
    const Limits limits = PoissonLimits(count, 0.95);
    EXPECT_NEAR(PoissonAtLeast(limits.low, count), 0.025, 1e-7) << count;
    EXPECT_NEAR(1 - PoissonAtLeast(limits.high, count + 1), 0.025, 1e-7) << count;
  }
}

}  // namespace
}  // namespace lockstep::cost
