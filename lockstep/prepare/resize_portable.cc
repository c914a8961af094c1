#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/prepare/resize_kernels.h"

namespace lockstep::prepare {
namespace {

int Half(int bits) { return 1 << (bits - 1); }

void AcrossRow(const uint8_t* in, const Axis& axis, uint8_t* out) {
  for (int x = 0; x < axis.count(); ++x, out += 4) {
    const uint8_t* pixel = in + static_cast<ptrdiff_t>(axis.first[static_cast<size_t>(x)]) * 3;
    const int16_t* weights = axis.Of(x);
    int red = Half(axis.bits), green = red, blue = red;
    for (int i = 0; i < axis.taps; ++i, pixel += 3) {
      red += pixel[0] * weights[i];
      green += pixel[1] * weights[i];
      blue += pixel[2] * weights[i];
    }
    out[0] = static_cast<uint8_t>(red >> axis.bits);
    out[1] = static_cast<uint8_t>(green >> axis.bits);
    out[2] = static_cast<uint8_t>(blue >> axis.bits);
    out[3] = 0;
  }
}

void Across(Rows in, const Axis& axis, uint8_t* out) {
  for (int y = 0; y < in.count; ++y)
    AcrossRow(in.data + static_cast<size_t>(y) * in.stride, axis,
              out + static_cast<size_t>(y) * FourByteStride(axis.count()));
}

// By blocks of sixteen pixels, the rows one after the other: loops that compilers turn into vector code.
void Down(const uint8_t* in, const Weights& weights, int width, uint8_t* out) {
  constexpr int kBlock = 64;
  const size_t stride = FourByteStride(width);
  for (int x = 0; x < width; x += kBlock / 4, in += kBlock) {
    std::array<int, kBlock> sums;
    sums.fill(Half(weights.bits));
    const uint8_t* row = in;
    for (int i = 0; i < weights.taps; ++i, row += stride)
      for (size_t k = 0; k < kBlock; ++k) sums[k] += row[k] * weights.values[i];
    for (int k = 0; k < std::min(kBlock / 4, width - x); ++k, out += 3)
      for (int channel = 0; channel < 3; ++channel)
        out[channel] = static_cast<uint8_t>(sums[static_cast<size_t>(k * 4 + channel)] >> weights.bits);
  }
}

}  // namespace

const ResizeKernels kPortableKernels{"portable", Across, Down};

std::span<const ResizeKernels* const> AvailableKernels() {
  static const std::vector<const ResizeKernels*> available = [] {
    std::vector<const ResizeKernels*> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw")) found.push_back(&kAvx512Kernels);
    if (__builtin_cpu_supports("avx2")) found.push_back(&kAvx2Kernels);
#endif
    found.push_back(&kPortableKernels);
    return found;
  }();
  return available;
}

}  // namespace lockstep::prepare
