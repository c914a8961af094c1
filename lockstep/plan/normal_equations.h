// A step of Levenberg-Marquardt: (A + damping x diagonal of A) step = right, for a symmetric A that is positive
// definite, row after row. Cost: n cubed over 6.
#pragma once

#include <span>
#include <vector>

namespace lockstep::plan {

std::vector<double> SolveDamped(std::span<const double> matrix, std::span<const double> right, double damping);

}  // namespace lockstep::plan
