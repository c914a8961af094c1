// Words that anybody can make anew: the content of what is copied, sent and written, so that each place can tell what
// should be there. SplitMix64 of a seed and a position.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/base/mix.h"

namespace lockstep::probe {

constexpr uint64_t PatternWord(uint64_t seed, uint64_t position) { return Mix(seed + (position + 1) * kGoldenGamma); }

inline void FillPattern(uint64_t seed, uint64_t position, std::span<uint64_t> words) {
  for (uint64_t& word : words) word = PatternWord(seed, position++);
}

// How many words differ from the pattern, and which one first.
struct Difference {
  uint64_t words = 0;
  uint64_t position = 0, expected = 0, found = 0;  // of the first

  void Add(const Difference& later) {
    if (words == 0)
      *this = later;
    else
      words += later.words;
  }
};

inline Difference CompareWithPattern(uint64_t seed, uint64_t position, std::span<const uint64_t> words) {
  Difference difference;
  for (const uint64_t word : words) {
    const uint64_t expected = PatternWord(seed, position);
    if (word != expected && difference.words++ == 0) difference = {1, position, expected, word};
    ++position;
  }
  return difference;
}

}  // namespace lockstep::probe
