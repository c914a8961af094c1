// A random order of 0..n-1 that is known by its key alone. Up to kTableLimit it is a table, made by Fisher and Yates's
// shuffle: every order has the same chance. Above, a Feistel network over a mixed radix a·b >= n whose values outside
// [0, n) are walked over (Black and Rogaway 2002): no memory, and inverse as fast.
// Immutable. Cost: table 8 bytes an item; above about 50 ns a value.
//
//   Permutation order(1'000'000'000, Hash(seed, epoch));
//   order.IndexOf(order.At(100'000'000)) == 100'000'000
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::sampling {

class Permutation {
 public:
  static constexpr uint64_t kTableLimit = uint64_t{1} << 16;

  // Requires size <= 2^62. `table_limit`: for tests of the network at small sizes.
  Permutation(uint64_t size, uint64_t key, uint64_t table_limit = kTableLimit);
  uint64_t size() const { return size_; }
  uint64_t At(uint64_t index) const;       // requires index < size()
  uint64_t IndexOf(uint64_t value) const;  // requires value < size()

 private:
  static constexpr int kRounds = 8;
  uint64_t Forward(uint64_t value) const;
  uint64_t Backward(uint64_t value) const;

  uint64_t size_;
  uint64_t left_ = 1, right_ = 1;  // a and b: a value is l·b + r
  std::array<uint64_t, kRounds> keys_{};
  std::vector<uint32_t> values_, indices_;  // of small ones
};

}  // namespace lockstep::sampling
