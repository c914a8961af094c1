// Antialiased linear interpolation along one axis, as PIL's BILINEAR: which inputs make up an output, and by what weights.
// Output x of n has its centre at c = (x + 1/2) in/n; with s = max(in/n, 1) input i weighs max(0, 1 - |i + 1/2 - c| / s),
// and the weights of an output are scaled to sum to 1. Inputs are those from int(c - s + 1/2) to int(c + s + 1/2), exclusive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::prepare {

struct AxisSpec {
  int in = 0, scaled = 0;             // from so many to so many
  int kept_begin = 0, kept_count = 0;  // of the scaled ones
  bool mirrored = false;
};

// Weights are fixed point, of as many bits as 16-bit numbers allow (14 where nothing is shrunk, as they become smaller, more);
// of each output they sum to exactly 1 << bits, so what is flat stays flat.
struct Axis {
  int begin = 0, size = 0;       // the inputs that are looked at; the others need not exist
  int taps = 0;                  // of each output, those of weight 0 among them; a multiple of what was asked for
  int bits = 14;
  std::vector<int32_t> first;    // of each output, counted from `begin`; first + taps <= size unless taps > size
  std::vector<int16_t> weights;  // taps of each output

  int count() const { return static_cast<int>(first.size()); }
  const int16_t* Of(int output) const { return weights.data() + static_cast<size_t>(output) * static_cast<size_t>(taps); }
};

// Into `axis`, whose memory is reused. All sizes are at least 1.
void MakeAxis(const AxisSpec& spec, int multiple, Axis& axis);

}  // namespace lockstep::prepare
