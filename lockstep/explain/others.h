// The median and the standard deviation of all values but a few, which are asked for many times. Cost: sorts the values
// once; then that of sorting the few.
//
//   const Others others({1, 2, 3, 100});
//   others.Without({3});  // median 2, deviation 0.82
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::explain {

class Others {
 public:
  // NaN: there is none.
  explicit Others(const std::vector<double>& values);

  struct Summary {
    double median = 0, deviation = 0;
  };
  // indices: of values; none twice.
  Summary Without(const std::vector<size_t>& indices) const;

 private:
  std::vector<std::pair<double, size_t>> sorted_;  // with their indices
  std::vector<size_t> place_;                      // there, by index
  double mean_ = 0, squares_ = 0;                  // the latter: sum of squared distances from it
};

}  // namespace lockstep::explain
