// A step of Levenberg-Marquardt: (A + damping x diagonal of A) step = right, for a symmetric A that is positive
// definite, row after row. Cost: n cubed over 6.
#pragma once

#include <span>
#include <vector>

namespace lockstep::plan {

// The inverse of a symmetric n x n matrix that is positive definite. Cost: n cubed over 2.
std::vector<double> Inverse(std::span<const double> matrix, size_t n);
std::vector<double> SolveDamped(std::span<const double> matrix, std::span<const double> right, double damping);

}  // namespace lockstep::plan
