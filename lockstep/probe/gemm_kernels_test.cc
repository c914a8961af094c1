// The checksums of gemm_kernels.h, found in another way. With a and b in single precision, a b is exact in double, and
// so is no sum; but rounding a sum from double to single gives what one rounding of the exact sum would, since 53 bits
// are more than twice 24 and two (Figueroa 1995). So the plain kernel is
//   c = float(double(c) + double(float(double(a) * b)))
// and the fused one, whose product is not rounded, is fmaf(), which rounds once by definition.
#include "lockstep/probe/gemm_kernels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/client/client.h"
#include "lockstep/probe/exact.h"

namespace lockstep::probe {
namespace {

constexpr size_t kValues = static_cast<size_t>(kGemmSize) * kGemmSize;

uint32_t CrcOf(const std::vector<float>& values) { return ls_crc32c(0, values.data(), values.size() * sizeof(float)); }

template <typename Step>
uint32_t ReferenceCrc(Step step) {
  const std::vector<float> a = FixedValues("gemm a", kValues, 1), b = FixedValues("gemm b", kValues, 1);
  std::vector<float> c(kValues);
  for (size_t i = 0; i < kGemmSize; ++i) {
    for (size_t j = 0; j < kGemmSize; ++j) {
      float sum = 0;
      for (size_t k = 0; k < kGemmSize; ++k) sum = step(a[i * kGemmSize + k], b[k * kGemmSize + j], sum);
      c[i * kGemmSize + j] = sum;
    }
  }
  return CrcOf(c);
}

TEST(GemmKernels, KnownChecksumsAreThoseOfTheFormula) {
  const auto plain = [](float a, float b, float sum) {
    const auto product = static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
    return static_cast<float>(static_cast<double>(sum) + static_cast<double>(product));
  };
  EXPECT_EQ(ReferenceCrc(plain), kPlainGemmCrc) << std::hex << ReferenceCrc(plain);
  const auto fused = [](float a, float b, float sum) { return std::fma(a, b, sum); };
  EXPECT_EQ(ReferenceCrc(fused), kFusedGemmCrc) << std::hex << ReferenceCrc(fused);
}

TEST(GemmKernels, EachGivesItsChecksumAndNoOtherForOneFlippedBit) {
  std::vector<float> a = FixedValues("gemm a", kValues, 1), c(kValues);
  const std::vector<float> b = FixedValues("gemm b", kValues, 1);
  for (const GemmKernel& kernel : GemmKernels()) {
    kernel.multiply(a.data(), b.data(), c.data());
    EXPECT_EQ(CrcOf(c), kernel.expected_crc) << kernel.name;
    for (const size_t at : {size_t{0}, kValues / 3, kValues - 1}) {
      const float before = a[at];
      a[at] = std::nextafter(before, 2.0F);  // the least there is
      kernel.multiply(a.data(), b.data(), c.data());
      EXPECT_NE(CrcOf(c), kernel.expected_crc) << kernel.name << " " << at;
      a[at] = before;
    }
  }
}

}  // namespace
}  // namespace lockstep::probe
