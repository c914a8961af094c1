// The two passes of a resize, for each kind of processor; all give the same bytes. Between them pixels have four bytes
// (the last means nothing) and rows a whole number of 64-byte blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/prepare/axis.h"

namespace lockstep::prepare {

struct Rows {
  const uint8_t* data = nullptr;
  size_t stride = 0;
  int count = 0;
};

// Of one output.
struct Weights {
  const int16_t* values = nullptr;
  int taps = 0, bits = 0;
};

// Across, 16 bytes are loaded at once, which are five pixels: 2, 4 or 6 weights (the sixth is zero), or a multiple of
// four.
inline Taps TapsAcross(int most) {
  const int stored = most <= 2 ? 2 : most == 5 ? 6 : (most + 3) / 4 * 4;
  return {stored, most == 5 ? 5 : stored};
}
// Down, two rows are weighed at once.
inline Taps TapsDown(int most) { return {(most + 1) / 2 * 2, (most + 1) / 2 * 2}; }
inline constexpr int kSpareRows = 2;  // of weight 0, behind the last

inline size_t FourByteStride(int width) { return (static_cast<size_t>(width) * 4 + 63) / 64 * 64; }

struct ResizeKernels {
  const char* name;
  // Three-byte rows, each scaled by `axis` (TapsAcross) into four-byte rows of FourByteStride. Reads up to
  // 16 bytes behind the last pixel of a row.
  void (*across)(Rows in, const Axis& axis, uint8_t* out);
  // One row of `width` three-byte pixels: the sum of taps (TapsDown) four-byte rows from `in`, weighed.
  void (*down)(const uint8_t* in, const Weights& weights, int width, uint8_t* out);
};

// Those that this processor has, the fastest first; the portable one is always the last.
std::span<const ResizeKernels* const> AvailableKernels();

extern const ResizeKernels kPortableKernels;
#if defined(__x86_64__)
extern const ResizeKernels kAvx2Kernels, kAvx512Kernels;
#endif

}  // namespace lockstep::prepare
