#include "lockstep/probe/gemm_kernels.h"

#include <algorithm>

namespace lockstep::probe {
namespace {

// One text for all: what it is compiled for decides which units do it, and vectors go over columns, so no sum is split.
template <bool kFused>
[[gnu::always_inline]] inline void Multiply(const float* a, const float* b, float* __restrict c) {
  constexpr int kSize = kGemmSize;
  std::fill(c, c + kSize * kSize, 0.0F);
  for (int i = 0; i < kSize; ++i) {
    for (int k = 0; k < kSize; ++k) {
      const float factor = a[i * kSize + k];
      const float* const row = b + k * kSize;
      float* const out = c + i * kSize;
      for (int j = 0; j < kSize; ++j) {
        out[j] = kFused ? __builtin_fmaf(factor, row[j], out[j]) : out[j] + factor * row[j];
      }
    }
  }
}

void MultiplyPlain(const float* a, const float* b, float* c) { Multiply<false>(a, b, c); }

#ifdef __x86_64__
[[gnu::target("avx2,fma")]] void MultiplyAvx2(const float* a, const float* b, float* c) { Multiply<true>(a, b, c); }
[[gnu::target("avx512f,avx2,fma,prefer-vector-width=512")]] void MultiplyAvx512(const float* a, const float* b,
                                                                                float* c) {
  Multiply<true>(a, b, c);
}
#endif

}  // namespace

std::vector<GemmKernel> GemmKernels() {
  std::vector<GemmKernel> kernels{{"plain", kPlainGemmCrc, MultiplyPlain}};
#ifdef __x86_64__
  __builtin_cpu_init();
  const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fused) kernels.push_back({"fused avx2", kFusedGemmCrc, MultiplyAvx2});
  if (fused && __builtin_cpu_supports("avx512f")) kernels.push_back({"fused avx512", kFusedGemmCrc, MultiplyAvx512});
#endif
  return kernels;
}

}  // namespace lockstep::probe
