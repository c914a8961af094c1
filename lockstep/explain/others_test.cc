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
  if (rest.empty()) return {};
  std::sort(rest.begin(), rest.end());
  const std::vector<double> tail(rest.end() - static_cast<std::ptrdiff_t>((rest.size() + 3) / 4), rest.end());
  return {Median(rest), std::sqrt(Mean(squares)), rest.size(), tail.front(), Mean(tail) - tail.front()};
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
      SCOPED_TRACE(testing::Message() << count << " without " << some);
      const Others::Summary found = others.Without(indices), expected = Expected(values, indices);
      EXPECT_EQ(found.median, expected.median);
      EXPECT_NEAR(found.deviation, expected.deviation, 1e-6);
      EXPECT_EQ(found.count, expected.count);
      EXPECT_EQ(found.upper, expected.upper);
      EXPECT_NEAR(found.tail, expected.tail, 1e-6);
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
