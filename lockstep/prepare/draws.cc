#include "lockstep/prepare/draws.h"

namespace lockstep::prepare {
namespace {

uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

PhiloxBlock Philox(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {High(second) ^ counter[1] ^ key[0], Low(second), High(first) ^ counter[3] ^ key[1], Low(first)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

Draws::Draws(const AugmentKey& key) : counter_{Low(key.item), High(key.item), 0, 0} {
  // Seed, epoch and job are 192 bits, a key is 64: one block of Philox folds the two others into the seed.
  const PhiloxBlock folded =
      Philox({Low(key.epoch), High(key.epoch), Low(key.job), High(key.job)}, {Low(key.seed), High(key.seed)});
  key_ = {folded[0] ^ folded[2], folded[1] ^ folded[3]};
}

uint32_t Draws::Next() {
  if (used_ == 4) {
    block_ = Philox(counter_, key_);
    ++counter_[2];
    used_ = 0;
  }
  return block_[static_cast<size_t>(used_++)];
}

double Draws::Uniform(double low, double high) {
  const uint64_t upper = Next() >> 5, lower = Next() >> 6;  // 27 and 26 bits
  return low + (high - low) * (static_cast<double>(upper << 26 | lower) * 0x1p-53);
}

uint32_t Draws::Below(uint32_t count) {
  const uint32_t unfair = (0U - count) % count;  // so many of 2^32 are one too many
  for (;;) {
    const uint64_t product = uint64_t{Next()} * count;
    if (Low(product) >= unfair) return High(product);
  }
}

}  // namespace lockstep::prepare
