// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection of 64 bits after which neighbouring numbers have
// nothing in common. A stream of chance is the mix of multiples of kGoldenGamma.
#pragma once

#include <cstdint>

namespace lockstep {

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15U;

constexpr uint64_t Mix(uint64_t word) {
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9U;
  word = (word ^ word >> 27) * 0x94d049bb133111ebU;
  return word ^ word >> 31;
}

}  // namespace lockstep
