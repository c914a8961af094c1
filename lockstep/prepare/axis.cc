#include "lockstep/prepare/axis.h"

#include <algorithm>
#include <cmath>

namespace lockstep::prepare {
namespace {

// A weight is 1 / sum at most, and must stay below 1 << 15; products with a byte are summed in 32 bits.
int BitsFor(double least_sum) {
  constexpr int kLeast = 14, kMost = 22;
  int bits = kLeast;
  while (bits < kMost && std::ldexp(1 / least_sum, bits + 1) < 32'000) ++bits;
  return bits;
}

// Scales to a sum of 1 << bits; what rounding leaves over goes to the largest.
void Fix(const double* weights, int count, double sum, int bits, int16_t* fixed) {
  const int one = 1 << bits;
  const double scale = one / sum;
  int left = one, largest = 0;
  for (int i = 0; i < count; ++i) {
    const int value = static_cast<int>(weights[i] * scale + 0.5);
    fixed[i] = static_cast<int16_t>(value);
    left -= value;
    if (value > fixed[largest]) largest = i;
  }
  fixed[largest] = static_cast<int16_t>(fixed[largest] + left);
}

}  // namespace

void AxisMaker::Weigh(const AxisSpec& spec) {
  const double step = static_cast<double>(spec.in) / spec.scaled, support = std::max(step, 1.0), slope = 1 / support;
  outputs_.clear();
  weights_.clear();
  for (int i = 0; i < spec.kept_count; ++i) {
    const double centre = (spec.kept_begin + i + 0.5) * step;
    const int begin = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), spec.in);
    double sum = 0;
    for (int input = begin; input < end; ++input) {
      const double weight = std::max(0.0, 1 - std::abs(input + 0.5 - centre) * slope);
      weights_.push_back(weight);
      sum += weight;
    }
    outputs_.push_back({begin, end - begin, sum});
  }
}

void AxisMaker::Make(const AxisSpec& spec, ChooseTaps choose, Axis& axis) {
  Weigh(spec);
  int most = 0;
  double least_sum = outputs_[0].sum;
  for (const Output& output : outputs_) {
    most = std::max(most, output.count);
    least_sum = std::min(least_sum, output.sum);
  }
  const Taps taps = choose(most);
  axis.begin = outputs_.front().begin;
  axis.size = outputs_.back().begin + outputs_.back().count - axis.begin;
  axis.taps = taps.stored;
  axis.bits = BitsFor(least_sum);
  axis.first.resize(outputs_.size());
  axis.weights.assign(outputs_.size() * static_cast<size_t>(taps.stored), 0);
  const double* weights = weights_.data();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Output& output = outputs_[i];
    const size_t at = spec.mirrored ? outputs_.size() - 1 - i : i;
    const int begin = output.begin - axis.begin;
    axis.first[at] = std::min(begin, std::max(axis.size - taps.window, 0));
    int16_t* fixed = axis.weights.data() + at * static_cast<size_t>(taps.stored) + (begin - axis.first[at]);
    Fix(weights, output.count, output.sum, axis.bits, fixed);
    weights += output.count;
  }
}

}  // namespace lockstep::prepare
