#include "lockstep/explain/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace lockstep::explain {

double Mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Deviation(const std::vector<double>& values) {
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
}

Center CenterOf(std::vector<double> values) {
  const double median = MedianInPlace(values);
  for (double& value : values) value = std::abs(value - median);
  return {median, kNormal * MedianInPlace(values)};
}

double RobustSpread(std::vector<double> values) { return CenterOf(std::move(values)).spread; }

size_t StrideFor(size_t count) {
  constexpr size_t kEnough = 1000;
  return (count / kEnough + 1) | 1U;  // odd: steps may repeat in twos and fours
}

std::vector<size_t> Descending(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

double Variation(std::vector<double> values) {
  const Center center = CenterOf(std::move(values));
  return center.median == 0 ? 0 : center.spread / center.median;
}

double SpreadBelow(const std::vector<double>& values, double middle) {
  std::vector<double> distances;
  for (const double value : values)
    if (value <= middle) distances.push_back(middle - value);
  return kNormal * MedianInPlace(distances);
}

double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean_a = Mean(a), mean_b = Mean(b);
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa == 0 || bb == 0 ? 0 : ab / std::sqrt(aa * bb);
}

double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b) {
  const size_t stride = StrideFor(a.size());
  const auto ranks = [stride](const std::vector<double>& values) {
    std::vector<std::pair<double, uint32_t>> picked;  // with their places
    picked.reserve(values.size() / stride + 1);
    for (size_t i = 0; i < values.size(); i += stride)
      picked.emplace_back(values[i], static_cast<uint32_t>(picked.size()));
    std::sort(picked.begin(), picked.end());
    std::vector<double> rank(picked.size());
    double next = 0;
    for (const auto& [value, place] : picked) rank[place] = next++;
    return rank;
  };
  return Correlation(ranks(a), ranks(b));
}

double RobustCorrelation(std::vector<double> a, std::vector<double> b) {
  const double spread_a = RobustSpread(a), spread_b = RobustSpread(b);
  if (spread_a == 0 || spread_b == 0) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double one = a[i] / spread_a, other = b[i] / spread_b;
    a[i] = one + other;
    b[i] = one - other;
  }
  const double sum = RobustSpread(std::move(a)), difference = RobustSpread(std::move(b));
  const double both = sum * sum + difference * difference;
  return both == 0 ? 0 : (sum * sum - difference * difference) / both;
}

}  // namespace lockstep::explain
