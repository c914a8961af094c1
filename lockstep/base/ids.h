// Strong integer ids: a RankId is not an EpochId. Ordered, hashable by value(), printed as the bare number.
#pragma once

#include <compare>
#include <cstdint>

namespace lockstep {

template <typename Tag, typename Int = int32_t>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Int value) : value_(value) {}
  constexpr Int value() const { return value_; }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  Int value_ = 0;
};

using RankId = Id<struct RankTag>;  // global rank, 0 <= rank < world size
using EpochId =
    Id<struct EpochTag, uint64_t>;           // fencing token: grows with every restart; the first epoch is 1, 0 is none
using StepId = Id<struct StepTag, int64_t>;  // training step as the script numbers it; -1 is "before the first"

}  // namespace lockstep
