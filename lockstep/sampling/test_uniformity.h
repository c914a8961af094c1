// Counts of what came where, and how likely such counts are if all orders have the same chance.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace lockstep::sampling {

// P(X >= value) of chi-square with `freedom` degrees: the upper regularised incomplete gamma function, by its series or
// its continued fraction (Abramowitz and Stegun 6.5.29, 6.5.31).
inline double ChiSquareTail(double value, double freedom) {
  const double a = freedom / 2, x = value / 2;
  if (x <= 0) return 1;
  const double scale = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double k = a + 1; term > sum * 1e-15; ++k) sum += term *= x / k;
    return 1 - scale * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, fraction = d;
  for (int k = 1; k < 10000; ++k) {
    const double numerator = -k * (k - a);
    b += 2;
    d = 1 / (numerator * d + b);
    c = b + numerator / c;
    fraction *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return scale * fraction;
}

// Orders of one set, drawn again and again.
class OrderCounts {
 public:
  explicit OrderCounts(size_t size) : size_(size), at_(size * size), pairs_(size * size), across_(size * size) {}

  // `order` has each of 0..size-1 once. `pair`: which two neighbours are counted; `item`: whose places in this epoch
  // and the next are. Both go through all values, one a call, so that what is counted is independent.
  void Add(std::span<const uint32_t> order, std::span<const uint32_t> next_epoch) {
    for (size_t place = 0; place < size_; ++place) ++at_[place * size_ + order[place]];
    const size_t place = calls_ % (size_ - 1);
    ++pairs_[order[place] * size_ + order[place + 1]];
    const auto item = static_cast<uint32_t>(calls_ % size_);
    if (!next_epoch.empty()) ++across_[PlaceOf(order, item) * size_ + PlaceOf(next_epoch, item)];
    ++calls_;
  }

  // Only places × items, also of an order that has some item twice.
  void AddPlaces(std::span<const uint32_t> order) {
    for (size_t place = 0; place < size_; ++place) ++at_[place * size_ + order[place]];
    ++calls_;
  }

  // A matrix of one run is a permutation: its covariance is that of (size-1)² free counts, times size/(size-1).
  double PlaceChance() const {
    const auto n = static_cast<double>(size_);
    return ChiSquareTail(Statistic(at_, Total() / n, false) * (n - 1) / n, (n - 1) * (n - 1));
  }
  double PairChance() const {
    const auto n = static_cast<double>(size_);
    return ChiSquareTail(Statistic(pairs_, Total() / (n * (n - 1)), true), n * (n - 1) - 1);
  }
  double EpochChance() const {
    const auto n = static_cast<double>(size_);
    return ChiSquareTail(Statistic(across_, Total() / (n * n), false), n * n - 1);
  }

 private:
  static size_t PlaceOf(std::span<const uint32_t> order, uint32_t item) {
    size_t place = 0;
    while (order[place] != item) ++place;
    return place;
  }
  double Total() const { return static_cast<double>(calls_); }
  double Statistic(const std::vector<uint32_t>& counts, double expected, bool without_diagonal) const {
    double sum = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (without_diagonal && i / size_ == i % size_) continue;
      const double off = counts[i] - expected;
      sum += off * off / expected;
    }
    return sum;
  }

  size_t size_;
  uint64_t calls_ = 0;
  std::vector<uint32_t> at_, pairs_, across_;
};

}  // namespace lockstep::sampling
