// Whole numbers as a person reads them: "0-511, 513".
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace lockstep {

struct RangesForm {
  size_t least = 3;                                  // numbers that follow each other, from which on they are a range
  size_t most = std::numeric_limits<size_t>::max();  // ranges, each number outside of one too; of others how many
};
std::string RangesText(std::span<const int64_t> numbers, const RangesForm& form = {});
std::string RangesText(std::span<const int> numbers, const RangesForm& form = {});

}  // namespace lockstep
