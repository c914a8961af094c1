#include "lockstep/explain/others.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

Others::Summary Expected(const std::vector<double>& values, const std::vector<size_t>& without) {
  std::vector<double> rest, squares;
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i]) && std::find(without.begin(), without.end(), i) == without.end())
      rest.push_back(values[i]);
  for (const double value : rest) squares.push_back((value - Mean(rest)) * (value - Mean(rest)));
  return {Median(rest), std::sqrt(Mean(squares))};
}

TEST(Others, AreSummedUpAsIfTheFewWereNotThere) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> eighths(0, 8);
  for (size_t count = 1; count <= 40; ++count) {
    std::vector<double> values(count);
    for (double& value : values)
      value = random() % 8 == 0 ? std::numeric_limits<double>::quiet_NaN() : std::round(eighths(random)) / 8;
    const Others others(values);
    for (size_t some = 0; some <= count; ++some) {
      std::vector<size_t> indices(count);
      std::iota(indices.begin(), indices.end(), size_t{0});
      std::shuffle(indices.begin(), indices.end(), random);
      indices.resize(some);
      const auto [median, deviation] = others.Without(indices);
      const Others::Summary expected = Expected(values, indices);
      EXPECT_EQ(median, expected.median) << count << " without " << some;
      EXPECT_NEAR(deviation, expected.deviation, 1e-6) << count << " without " << some;
    }
  }
}

// A look at all values for each would take many times as long as a test may.
TEST(Others, CostOfManyLooksIsThatOfTheFew) {
  std::vector<double> values(1'000'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  const Others others(values);
  for (size_t worker = 0; worker < values.size(); ++worker)
    ASSERT_EQ(others.Without({worker}).median, worker < values.size() / 2 ? 500'000 : 499'999);
}

}  // namespace
}  // namespace lockstep::explain
