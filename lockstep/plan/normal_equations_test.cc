#include "lockstep/plan/normal_equations.h"

#include <gmock/gmock.h>

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

// [4 2 0; 2 5 1; 0 1 3] x [1 2 3] = [8 15 11].
TEST(NormalEquations, ByHand) {
  const std::vector<double> matrix = {4, 2, 0, 2, 5, 1, 0, 1, 3}, right = {8, 15, 11};
  EXPECT_THAT(SolveDamped(matrix, right, 0),
              ElementsAre(DoubleNear(1, 1e-12), DoubleNear(2, 1e-12), DoubleNear(3, 1e-12)));
  // Damped until the matrix is its diagonal: a small step down the slope.
  const std::vector<double> step = SolveDamped(matrix, right, 1e9);
  EXPECT_THAT(step[0], DoubleNear(8 / 4e9, 1e-15));
  EXPECT_THAT(step[2], DoubleNear(11 / 3e9, 1e-15));
}

// Of the same matrix, whose determinant is 44.
TEST(NormalEquations, TheInverseByHand) {
  const std::vector<double> inverse = Inverse(std::vector<double>{4, 2, 0, 2, 5, 1, 0, 1, 3}, 3);
  const double expected[] = {14, -6, 2, -6, 12, -4, 2, -4, 16};
  for (size_t i = 0; i < 9; ++i) EXPECT_THAT(inverse[i], DoubleNear(expected[i] / 44, 1e-12)) << i;
}

}  // namespace
}  // namespace lockstep::plan
