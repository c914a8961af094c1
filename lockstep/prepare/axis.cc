#include "lockstep/prepare/axis.h"

#include <algorithm>
#include <cmath>

namespace lockstep::prepare {
namespace {

struct Span {
  int begin, end;
};

// One output's inputs and weights, after the formula above.
class Triangle {
 public:
  explicit Triangle(const AxisSpec& spec)
      : in_(spec.in), step_(static_cast<double>(spec.in) / spec.scaled), support_(std::max(step_, 1.0)) {}

  double Centre(int output) const { return (output + 0.5) * step_; }
  Span Inputs(double centre) const {
    return {std::max(static_cast<int>(centre - support_ + 0.5), 0),
            std::min(static_cast<int>(centre + support_ + 0.5), in_)};
  }
  double Weight(int input, double centre) const {
    return std::max(0.0, 1 - std::abs(input + 0.5 - centre) / support_);
  }

 private:
  int in_;
  double step_, support_;
};

double SumOf(const Triangle& triangle, double centre, Span inputs) {
  double sum = 0;
  for (int i = inputs.begin; i < inputs.end; ++i) sum += triangle.Weight(i, centre);
  return sum;
}

// A weight is 1 / sum at most, and must stay below 1 << 15; products with a byte are summed in 32 bits.
int BitsFor(double least_sum) {
  constexpr int kLeast = 14, kMost = 22;
  int bits = kLeast;
  while (bits < kMost && std::ldexp(1 / least_sum, bits + 1) < 32'000) ++bits;
  return bits;
}

// Scales to fixed point; what rounding leaves over goes to the largest.
void Fix(const Triangle& triangle, double centre, Span inputs, int bits, int16_t* fixed) {
  const int one = 1 << bits;
  const double scale = one / SumOf(triangle, centre, inputs);
  int left = one, largest = 0;
  for (int i = inputs.begin, k = 0; i < inputs.end; ++i, ++k) {
    fixed[k] = static_cast<int16_t>(triangle.Weight(i, centre) * scale + 0.5);
    left -= fixed[k];
    if (fixed[k] > fixed[largest]) largest = k;
  }
  fixed[largest] = static_cast<int16_t>(fixed[largest] + left);
}

int RoundedUp(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

void MakeAxis(const AxisSpec& spec, int multiple, Axis& axis) {
  const Triangle triangle(spec);
  const auto inputs = [&](int output) { return triangle.Inputs(triangle.Centre(spec.kept_begin + output)); };
  axis.begin = inputs(0).begin;
  axis.size = inputs(spec.kept_count - 1).end - axis.begin;
  int most = 0;
  double least_sum = 1e9;
  for (int i = 0; i < spec.kept_count; ++i) {
    most = std::max(most, inputs(i).end - inputs(i).begin);
    least_sum = std::min(least_sum, SumOf(triangle, triangle.Centre(spec.kept_begin + i), inputs(i)));
  }
  axis.taps = RoundedUp(most, multiple);
  axis.bits = BitsFor(least_sum);
  const auto count = static_cast<size_t>(spec.kept_count), taps = static_cast<size_t>(axis.taps);
  axis.first.resize(count);
  axis.weights.assign(count * taps, 0);
  for (int i = 0; i < spec.kept_count; ++i) {
    const auto at = static_cast<size_t>(spec.mirrored ? spec.kept_count - 1 - i : i);
    const Span span = inputs(i);
    const int begin = span.begin - axis.begin;
    const int first = std::min(begin, std::max(axis.size - axis.taps, 0));
    axis.first[at] = first;
    Fix(triangle, triangle.Centre(spec.kept_begin + i), span, axis.bits,
        axis.weights.data() + at * taps + (begin - first));
  }
}

}  // namespace lockstep::prepare
