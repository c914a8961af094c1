// Random numbers of our own, so that a seed gives the same job with every standard library: SplitMix64, and Box and
// Muller's normal deviates.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "lockstep/base/mix.h"

namespace lockstep::synth {

class Chance {
 public:
  explicit Chance(uint64_t seed) : state_(seed) {}
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  size_t Below(size_t limit) { return static_cast<size_t>(Uniform() * static_cast<double>(limit)); }
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }
  // Mean 1.
  double Spread(double sigma) { return sigma == 0 ? 1 : std::exp(sigma * Normal() - sigma * sigma / 2); }

 private:
  uint64_t Next() { return Mix(state_ += kGoldenGamma); }
  uint64_t state_;
};

}  // namespace lockstep::synth
