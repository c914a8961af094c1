#include "lockstep/explain/large_sample.h"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::explain {
namespace {

// By sorting a copy.
double Expected(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class LargeSample : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Counts, LargeSample, testing::Values(1, 2, 3, 100, 65536, 200001));

TEST_P(LargeSample, HasTheMedianThatSortingGives) {
  std::mt19937 random(1);
  std::normal_distribution<float> far(-3, 1000), close(5, 1e-6F);
  for (int kind = 0; kind < 3; ++kind) {
    std::vector<float> values;
    values.reserve(GetParam());
    for (size_t i = 0; i < GetParam(); ++i)
      values.push_back(kind == 0 ? far(random) : kind == 1 ? close(random) : static_cast<float>(i % 3) - 1);
    const auto each = [&](const auto& take) {
      for (const float value : values) take(value);
    };
    const std::vector<double> doubles(values.begin(), values.end());
    EXPECT_EQ(MedianOf(values.size(), each), Expected(doubles));
    EXPECT_EQ(MedianByCounting(each), Expected(doubles));
  }
}

TEST(LargeSample, OfNothingIsZero) {
  EXPECT_EQ(MedianByCounting([](const auto& /*take*/) {}), 0);
}

}  // namespace
}  // namespace lockstep::explain
