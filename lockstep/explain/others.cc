#include "lockstep/explain/others.h"

#include <algorithm>
#include <cmath>

namespace lockstep::explain {
namespace {

constexpr size_t kNone = ~size_t{0};

}  // namespace

Others::Others(const std::vector<double>& values) : place_(values.size(), kNone) {
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) sorted_.emplace_back(values[i], i);
  std::sort(sorted_.begin(), sorted_.end());
  for (size_t place = 0; place < sorted_.size(); ++place) {
    place_[sorted_[place].second] = place;
    mean_ += sorted_[place].first / static_cast<double>(sorted_.size());
  }
  from_.assign(sorted_.size() + 1, 0);
  for (size_t place = sorted_.size(); place-- > 0;) from_[place] = from_[place + 1] + sorted_[place].first;
  for (const auto& [value, index] : sorted_) squares_ += (value - mean_) * (value - mean_);
}

Others::Summary Others::Without(const std::vector<size_t>& indices) const {
  std::vector<size_t> gone;            // places, ascending
  double sum = 0, squares = squares_;  // of distances of the rest from the mean of all
  for (const size_t index : indices) {
    if (place_[index] == kNone) continue;
    gone.push_back(place_[index]);
    const double distance = sorted_[place_[index]].first - mean_;
    sum -= distance;
    squares -= distance * distance;
  }
  if (gone.size() == sorted_.size()) return {};
  std::sort(gone.begin(), gone.end());
  const auto place_of = [&](size_t nth) {
    for (const size_t one : gone) nth += one <= nth ? 1 : 0;
    return nth;
  };
  const auto nth = [&](size_t number) { return sorted_[place_of(number)].first; };
  const size_t count = sorted_.size() - gone.size(), upper = count - (count + 3) / 4, begin = place_of(upper);
  double in_tail = from_[begin];
  for (const size_t one : gone) in_tail -= one > begin ? sorted_[one].first : 0;
  const double mean = sum / static_cast<double>(count);
  return {.median = (nth((count - 1) / 2) + nth(count / 2)) / 2,
          .deviation = std::sqrt(std::max(0.0, squares / static_cast<double>(count) - mean * mean)),
          .count = count,
          .upper = sorted_[begin].first,
          .tail = std::max(0.0, in_tail / static_cast<double>(count - upper) - sorted_[begin].first)};
}

}  // namespace lockstep::explain
