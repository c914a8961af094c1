// Antialiased linear interpolation along one axis, as PIL's BILINEAR: which inputs make up an output, and by what
// weights. Output x of n has its centre at c = (x + 1/2) in/n; with s = max(in/n, 1) input i weighs max(0, 1 - |i + 1/2
// - c| / s), and the weights of an output are scaled to sum to 1. Inputs are those from int(c - s + 1/2) to int(c + s +
// 1/2), exclusive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::prepare {

struct AxisSpec {
  int in = 0, scaled = 0;              // from so many to so many
  int kept_begin = 0, kept_count = 0;  // of the scaled ones
  bool mirrored = false;
};

// How many weights the code that uses an axis wants of each output, where the most that any needs are so many.
struct Taps {
  int stored = 0;  // with zeros behind
  int window = 0;  // weights that are not zero lie within the first so many
};
using ChooseTaps = Taps (*)(int most);

// Weights are fixed point, of as many bits as 16-bit numbers allow (14 where nothing is shrunk, as they become smaller,
// more); of each output they sum to exactly 1 << bits, so what is flat stays flat.
struct Axis {
  int begin = 0, size = 0;  // the inputs that are looked at; the others need not exist
  int taps = 0;             // stored, of each output
  int bits = 14;
  std::vector<int32_t> first;    // of each output, counted from `begin`; first + window <= size unless window > size
  std::vector<int16_t> weights;  // taps of each output

  int count() const { return static_cast<int>(first.size()); }
  const int16_t* Of(int output) const {
    return weights.data() + static_cast<size_t>(output) * static_cast<size_t>(taps);
  }
};

// Keeps its memory, and that of the axes it makes. All sizes are at least 1.
class AxisMaker {
 public:
  void Make(const AxisSpec& spec, ChooseTaps choose, Axis& axis);

 private:
  struct Output {
    int begin, count;  // its inputs
    double sum;        // of their weights
  };
  // What each output needs, its weights behind those of the one before.
  void Weigh(const AxisSpec& spec);

  std::vector<Output> outputs_;
  std::vector<double> weights_;
};

}  // namespace lockstep::prepare
