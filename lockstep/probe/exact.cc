#include "lockstep/probe/exact.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/check.h"
#include "lockstep/client/client.h"
#include "lockstep/probe/pattern.h"

namespace lockstep::probe {

Matrix Product(const Matrix& a, const Matrix& b) {
  LS_CHECK(a.columns == b.rows, "{} x {} times {} x {}", a.rows, a.columns, b.rows, b.columns);
  Matrix product(a.rows, b.columns);
  for (int i = 0; i < a.rows; ++i) {
    float* const out = product.Row(i);
    for (int k = 0; k < a.columns; ++k) {
      const float factor = a.Row(i)[k];
      const float* const row = b.Row(k);
      for (int j = 0; j < b.columns; ++j) out[j] += factor * row[j];
    }
  }
  return product;
}

Matrix Transposed(const Matrix& a) {
  Matrix transposed(a.columns, a.rows);
  for (int i = 0; i < a.rows; ++i) {
    for (int j = 0; j < a.columns; ++j) transposed.Row(j)[i] = a.Row(i)[j];
  }
  return transposed;
}

void AddTo(Matrix& sum, const Matrix& other) {
  LS_CHECK(sum.rows == other.rows && sum.columns == other.columns);
  for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += other.values[i];
}

// e^x = 2^n e^r with |r| <= ln 2 / 2; ln 2 in two parts, so that n times the first is exact (Cody and Waite); e^r by
// its Taylor polynomial, whose rest is below 2^-27.
float Exponential(float x) {
  constexpr float kLog2E = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  if (x < -87) return 0;
  x = std::min(x, 88.0F);
  const float scaled = x * kLog2E;
  const int n = static_cast<int>(scaled < 0 ? scaled - 0.5F : scaled + 0.5F);
  const auto whole = static_cast<float>(n);
  const float r = (x - whole * kLn2High) - whole * kLn2Low;
  float sum = 1.0F / 5040;
  for (const float coefficient : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
    sum = sum * r + coefficient;
  }
  return sum * std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

float ToBfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

std::vector<float> FixedValues(std::string_view name, size_t count, float scale) {
  const uint64_t seed = ls_crc32c(0, name.data(), name.size());
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const auto integer = static_cast<int32_t>(PatternWord(seed, i) >> 40) - (1 << 23);  // 24 bits: exact as float
    values[i] = static_cast<float>(integer) * 0x1p-23F * scale;
  }
  return values;
}

}  // namespace lockstep::probe
