// Chance by counter: a value is a function of (seed, epoch, item, job) and of nothing that happened before, so it can
// be asked for again, in any order and by any process. SplitMix64's finaliser, once for each word of the key.
//
//   Rng rng(KeyOf(Purpose::kEpoch, seed, epoch, item, job));
//   rng.Below(6);                            // uniform, no modulo bias
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "lockstep/base/mix.h"

namespace lockstep::sampling {

inline uint64_t Hash(uint64_t seed, uint64_t epoch, uint64_t item = 0, uint64_t job = 0) {
  uint64_t hash = Mix(seed + kGoldenGamma);
  for (const uint64_t word : {epoch, item, job}) hash = Mix((hash ^ word) + kGoldenGamma);
  return hash;
}

// What a value is for: values for different ends have nothing to do with each other.
enum class Purpose : uint64_t { kLap = 1, kUnits, kEpoch, kStep, kRehearsal, kAside, kTurn };
inline uint64_t KeyOf(Purpose purpose, uint64_t seed, uint64_t epoch, uint64_t item = 0, uint64_t job = 0) {
  return Hash(Hash(seed, static_cast<uint64_t>(purpose)), epoch, item, job);
}

// a·b / 2^64, rounded down: maps a uniform 64-bit `a` to [0, b), with a bias of at most b/2^64.
inline uint64_t Scale(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

class Rng {
 public:
  explicit Rng(uint64_t key) : state_(key) {}
  uint64_t Next() { return Mix(state_ += kGoldenGamma); }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Exactly uniform (Lemire's rejection). Requires limit >= 1.
  uint64_t Below(uint64_t limit) {
    __extension__ using Wide = unsigned __int128;
    Wide product = static_cast<Wide>(Next()) * limit;
    if (static_cast<uint64_t>(product) < limit) {
      const uint64_t least = (0 - limit) % limit;
      while (static_cast<uint64_t>(product) < least) product = static_cast<Wide>(Next()) * limit;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  uint64_t state_;
};

// Brings `count` of the values to the front, every ordered choice with the same chance (Fisher and Yates).
template <typename T>
void ShuffleFront(std::span<T> values, size_t count, Rng& rng) {
  for (size_t i = 0; i < count; ++i) std::swap(values[i], values[i + rng.Below(values.size() - i)]);
}
template <typename T>
void Shuffle(std::span<T> values, Rng& rng) {
  ShuffleFront(values, values.size(), rng);
}

}  // namespace lockstep::sampling
