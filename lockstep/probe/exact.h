// Arithmetic that gives the same bits on every machine with IEEE 754: single precision, one rounding per operation, a
// fixed order of additions. Only + - * / and the square root are used, which the standard defines to the last bit; the
// files that compute so are compiled without contraction into fused operations (-ffp-contract=off) and without
// -march, so that no compiler option of the project changes a bit. Denormals are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::probe {

// Row by row.
struct Matrix {
  Matrix(int of_rows, int of_columns)
      : rows(of_rows), columns(of_columns), values(static_cast<size_t>(of_rows) * static_cast<size_t>(of_columns)) {}
  float* Row(int row) { return values.data() + static_cast<size_t>(row) * static_cast<size_t>(columns); }
  const float* Row(int row) const { return values.data() + static_cast<size_t>(row) * static_cast<size_t>(columns); }

  int rows, columns;
  std::vector<float> values;
};

// Each element is the sum of its products by rising index, begun with zero.
Matrix Product(const Matrix& a, const Matrix& b);
Matrix Transposed(const Matrix& a);
// Requires equal shapes.
void AddTo(Matrix& sum, const Matrix& other);

// Within 2 units in the last place of the exponential; 0 below -87, and as of 88 above that.
float Exponential(float x);
// To the nearest bfloat16, ties to even. Of numbers only.
float ToBfloat16(float x);

// Values in [-scale, scale), as many as are asked for, from integers: the same for the same name.
std::vector<float> FixedValues(std::string_view name, size_t count, float scale);

}  // namespace lockstep::probe
