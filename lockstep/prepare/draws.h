// Chance as a pure function of a key: the same numbers for (seed, epoch, item, job), whoever draws, when and in what
// order. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11), keyed by seed, epoch and
// job; its counter is the item and how much of its numbers is used up.
//
//   Draws draws({.seed = 1, .epoch = 0, .item = 4711, .job = 2});
//   const double scale = draws.Uniform(0.08, 1);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::prepare {

struct AugmentKey {
  uint64_t seed = 0, epoch = 0, item = 0;
  uint64_t job = 0;  // jobs that share a decode but not a crop differ in it
};

using PhiloxBlock = std::array<uint32_t, 4>;
PhiloxBlock Philox(PhiloxBlock counter, std::array<uint32_t, 2> key);

class Draws {
 public:
  explicit Draws(const AugmentKey& key);
  uint32_t Next();
  double Uniform(double low, double high);  // [low, high), 53 bits
  uint32_t Below(uint32_t count);           // exactly uniform; count >= 1

 private:
  std::array<uint32_t, 2> key_;
  PhiloxBlock counter_, block_{};
  int used_ = 4;
};

}  // namespace lockstep::prepare
