// The median, the standard deviation and the tail of all values but a few, which are asked for many times. Cost: sorts
// the values once; then that of sorting the few.
//
//   const Others others({1, 2, 3, 100});
//   others.Without({3});  // median 2, deviation 0.82; the upper quarter begins at 3, where it ends
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
    size_t count = 0;
    double upper = 0, tail = 0;  // where the upper quarter begins, and how far from there its mean is
  };
  // indices: of values; none twice.
  Summary Without(const std::vector<size_t>& indices) const;

 private:
  std::vector<std::pair<double, size_t>> sorted_;  // with their indices
  std::vector<size_t> place_;                      // there, by index
  std::vector<double> from_;                       // the sum of all values from a place on
  double mean_ = 0, squares_ = 0;                  // the latter: sum of squared distances from it
};

}  // namespace lockstep::explain
