#include "lockstep/plan/normal_equations.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::plan {
namespace {

constexpr double kLeastPivot = 1e-12;

double Dot(const double* a, const double* b, size_t n) { return std::transform_reduce(a, a + n, b, 0.0); }

// Cholesky: the lower half becomes L, of L L^T.
void Factor(std::vector<double>& a, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    double* row = &a[i * n];
    for (size_t j = 0; j < i; ++j) row[j] = (row[j] - Dot(row, &a[j * n], j)) / a[j * n + j];
    row[i] = std::sqrt(std::max(row[i] - Dot(row, row, i), kLeastPivot));
  }
}

}  // namespace

// Of L, row after row, and from that of L L^T.
std::vector<double> Inverse(std::span<const double> matrix, size_t n) {
  std::vector<double> a(matrix.begin(), matrix.end());
  Factor(a, n);
  std::vector<double> columns(n * n), inverse(n * n);  // columns: row j is column j of the inverse of L
  for (size_t j = 0; j < n; ++j) {
    double* column = &columns[j * n];
    for (size_t i = j; i < n; ++i)
      column[i] = ((i == j ? 1 : 0) - Dot(&a[i * n + j], column + j, i - j)) / a[i * n + i];
  }
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j <= i; ++j)
      inverse[i * n + j] = inverse[j * n + i] = Dot(&columns[i * n + i], &columns[j * n + i], n - i);
  return inverse;
}

std::vector<double> SolveDamped(std::span<const double> matrix, std::span<const double> right, double damping) {
  const size_t n = right.size();
  std::vector<double> a(matrix.begin(), matrix.end()), x(right.begin(), right.end());
  for (size_t i = 0; i < n; ++i) a[i * n + i] *= 1 + damping;
  Factor(a, n);
  for (size_t i = 0; i < n; ++i) x[i] = (x[i] - Dot(&a[i * n], x.data(), i)) / a[i * n + i];
  for (size_t i = n; i-- > 0;) {
    x[i] /= a[i * n + i];
    for (size_t j = 0; j < i; ++j) x[j] -= a[i * n + j] * x[i];
  }
  return x;
}

}  // namespace lockstep::plan
