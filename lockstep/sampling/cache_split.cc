#include "lockstep/sampling/cache_split.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/sampling/baselines/mdp.h"

namespace lockstep::sampling {
namespace {

// Minimise t over (f_0..f_3, t): rows a·x <= b, and Σ f = 1. The best is at a vertex, where as many rows hold with
// equality as there are unknowns; there are few enough to look at all.
constexpr size_t kUnknowns = kForms + 1;
using Row = std::array<double, kUnknowns + 1>;  // the last: b
using Point = std::array<double, kUnknowns>;

std::optional<Point> Solve(std::array<Row, kUnknowns> rows) {
  for (size_t column = 0; column < kUnknowns; ++column) {
    size_t pivot = column;
    for (size_t row = column; row < kUnknowns; ++row) {
      if (std::abs(rows[row][column]) > std::abs(rows[pivot][column])) pivot = row;
    }
    if (std::abs(rows[pivot][column]) < 1e-12) return std::nullopt;
    std::swap(rows[column], rows[pivot]);
    for (size_t row = 0; row < kUnknowns; ++row) {
      if (row == column) continue;
      const double factor = rows[row][column] / rows[column][column];
      for (size_t i = column; i <= kUnknowns; ++i) rows[row][i] -= factor * rows[column][i];
    }
  }
  Point point{};
  for (size_t i = 0; i < kUnknowns; ++i) point[i] = rows[i][kUnknowns] / rows[i][i];
  return point;
}

bool Holds(const std::vector<Row>& rows, const Point& point) {
  return std::all_of(rows.begin(), rows.end(), [&](const Row& row) {
    double sum = 0;
    for (size_t i = 0; i < kUnknowns; ++i) sum += row[i] * point[i];
    return sum <= row[kUnknowns] + 1e-9;
  });
}

// Scaled so that coefficients are near 1: `second` is a typical time of a sample.
std::vector<Row> Constraints(const FormCosts& costs, const FeedData& data, double capacity, double second) {
  std::vector<Row> rows;
  for (size_t resource = 0; resource < kResources; ++resource) {
    Row row{};
    for (size_t form = 0; form < kForms; ++form) row[form] = costs[form][resource] / second;
    row[kForms] = -1;
    rows.push_back(row);
  }
  Row space{};
  const auto bytes = CacheBytes(data);
  for (size_t form = 0; form < kForms; ++form) space[form] = bytes[form] / data.encoded_bytes;
  space[kUnknowns] = capacity / (data.samples * data.encoded_bytes);
  rows.push_back(space);
  for (size_t form = 0; form < kForms; ++form) {
    Row positive{};
    positive[form] = -1;
    rows.push_back(positive);
  }
  return rows;
}

// Bytes of cache for each sample.
double Used(const FeedData& data, const Shares& shares) {
  const auto bytes = CacheBytes(data);
  return std::inner_product(bytes.begin(), bytes.end(), shares.begin(), 0.0);
}

// What is left of nothing after a difference is nothing, and has no sign.
Shares Rounded(const Shares& shares) {
  constexpr double kParts = 1e12;
  Shares rounded{};
  for (size_t form = 0; form < kForms; ++form) {
    const double share = std::round(shares[form] * kParts) / kParts;
    rounded[form] = share > 0 ? std::min(share, 1.0) : 0;
  }
  return rounded;
}

CacheSplit BestVertex(const FormCosts& costs, const FeedData& data, double cache_capacity) {
  const Shares nothing{1, 0, 0, 0};
  CacheSplit best = RateOf(costs, nothing);
  const std::vector<Row> rows = Constraints(costs, data, cache_capacity, 1 / best.rate);
  Row all{};
  std::fill_n(all.begin(), kForms, 1.0);
  all[kUnknowns] = 1;
  std::vector<bool> chosen(rows.size());
  std::fill_n(chosen.begin(), kForms, true);  // with `all`, as many as unknowns
  do {
    std::array<Row, kUnknowns> active{all};
    size_t next = 1;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (chosen[i]) active[next++] = rows[i];
    }
    const auto point = Solve(active);
    if (!point || !Holds(rows, *point)) continue;
    Shares shares{};
    std::copy_n(point->begin(), kForms, shares.begin());
    const CacheSplit split = RateOf(costs, Rounded(shares));
    const bool same = std::abs(split.rate / best.rate - 1) < 1e-9;
    if (split.rate > best.rate * (1 + 1e-9) || (same && Used(data, split.shares) < Used(data, best.shares)))
      best = split;
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
  return best;
}

bool IsBusy(const FormCosts& costs, const CacheSplit& split, size_t resource) {
  double seconds = 0;
  for (size_t form = 0; form < kForms; ++form) seconds += split.shares[form] * costs[form][resource];
  return seconds * split.rate > 1 - 1e-9;
}

}  // namespace

CacheSplit BestSplit(const FeedMachine& machine, const FeedData& data, double cache_capacity) {
  const FormCosts costs = CostTable(machine, data);
  CacheSplit best = BestVertex(costs, data, cache_capacity);
  // Where the cache need not be full, the split that takes least of it keeps a second resource exactly as busy, which
  // another split would spare.
  double most = 0;
  for (size_t resource = 0; resource < kResources; ++resource) {
    if (!IsBusy(costs, best, resource)) continue;
    FormCosts with_more = costs;
    for (auto& form : with_more) form[resource] /= 1.01;
    const double rate = BestVertex(with_more, data, cache_capacity).rate;
    if (rate <= most * (1 + 1e-9)) continue;
    most = rate;
    best.bottleneck = static_cast<Resource>(resource);
  }
  return best;
}

namespace {

// The published model takes an augmented sample for two decoded ones. What of its choice does not fit comes from
// storage.
Shares Fitting(const FeedData& data, double cache_capacity, Shares shares) {
  const double used = data.samples * Used(data, shares);
  if (used <= cache_capacity) return Rounded(shares);
  for (const Form form : {kEncoded, kDecoded, kAugmented}) shares[form] *= cache_capacity / used;
  shares[kStored] = 1 - shares[kEncoded] - shares[kDecoded] - shares[kAugmented];
  return Rounded(shares);
}

Json RowOf(double capacity, const CacheSplit& split) {
  return Json{{"cache_gb", capacity / 1e9},
              {"samples_per_s", split.rate},
              {"bottleneck", NameOf(split.bottleneck)},
              {"stored_pct", 100 * split.shares[kStored]},
              {"encoded_pct", 100 * split.shares[kEncoded]},
              {"decoded_pct", 100 * split.shares[kDecoded]},
              {"augmented_pct", 100 * split.shares[kAugmented]}};
}

}  // namespace

Json SplitReport(const FeedMachine& machine, const FeedData& data, double cache_capacity) {
  const CacheSplit split = BestSplit(machine, data, cache_capacity);
  const Shares chosen = baselines::MdpShares(machine, data, cache_capacity);
  const CacheSplit published = RateOf(machine, data, Fitting(data, cache_capacity, chosen));
  Json report{{"split", RowOf(cache_capacity, split)},
              {"published_mdp", RowOf(cache_capacity, published)},
              {"gain_over_published", split.rate / published.rate - 1}};
  for (const double factor : {0.0, 0.25, 0.5, 1.0, 2.0, 4.0})
    report["by_cache"].push_back(RowOf(factor * cache_capacity, BestSplit(machine, data, factor * cache_capacity)));
  return report;
}

}  // namespace lockstep::sampling
