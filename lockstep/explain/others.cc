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
  const auto nth = [&](size_t place) {
    for (const size_t one : gone) place += one <= place ? 1 : 0;
    return sorted_[place].first;
  };
  const size_t count = sorted_.size() - gone.size();
  const double mean = sum / static_cast<double>(count);
  return {(nth((count - 1) / 2) + nth(count / 2)) / 2,
          std::sqrt(std::max(0.0, squares / static_cast<double>(count) - mean * mean))};
}

}  // namespace lockstep::explain
