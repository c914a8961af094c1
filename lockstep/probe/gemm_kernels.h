// C = A B of fixed matrices, in a few ways of using the processor, each with bits that are known beforehand: the units
// that multiply and add are not the same ones for narrow, wide and fused instructions. Every element is summed by
// rising index; the fused kernels round once per step, the others twice, so there are two right answers.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::probe {

inline constexpr int kGemmSize = 256;  // rows and columns: A and B take 256 KiB each
inline constexpr uint32_t kPlainGemmCrc = 0x09f6cf42;
inline constexpr uint32_t kFusedGemmCrc = 0x98671f7d;

struct GemmKernel {
  const char* name;
  uint32_t expected_crc;  // CRC32C of C
  void (*multiply)(const float* a, const float* b, float* c);
};

// Those that this machine can run.
std::vector<GemmKernel> GemmKernels();

}  // namespace lockstep::probe
