#include "lockstep/sampling/permutation.h"

#include <cmath>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {
namespace {

uint64_t RootRoundedUp(uint64_t n) {
  auto root = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (root * root < n) ++root;
  return root;
}

uint64_t AddModulo(uint64_t a, uint64_t b, uint64_t modulus) { return a + b < modulus ? a + b : a + b - modulus; }
uint64_t SubtractModulo(uint64_t a, uint64_t b, uint64_t modulus) { return a >= b ? a - b : a + modulus - b; }

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t key, uint64_t table_limit) : size_(size) {
  LS_CHECK(size <= uint64_t{1} << 62, "{} items", size);
  Rng rng(key);
  if (size <= table_limit && size <= UINT32_MAX) {
    values_.resize(size);
    std::iota(values_.begin(), values_.end(), 0U);
    Shuffle(std::span(values_), rng);
    indices_.resize(size);
    for (uint32_t i = 0; i < size; ++i) indices_[values_[i]] = i;
    return;
  }
  left_ = RootRoundedUp(size);
  right_ = (size + left_ - 1) / left_;
  for (uint64_t& round : keys_) round = rng.Next();
}

uint64_t Permutation::Forward(uint64_t value) const {
  uint64_t left = value / right_, right = value % right_;
  for (size_t round = 0; round < kRounds; round += 2) {
    left = AddModulo(left, Scale(Mix(keys_[round] ^ right), left_), left_);
    right = AddModulo(right, Scale(Mix(keys_[round + 1] ^ left), right_), right_);
  }
  return left * right_ + right;
}

uint64_t Permutation::Backward(uint64_t value) const {
  uint64_t left = value / right_, right = value % right_;
  for (size_t round = kRounds; round > 0; round -= 2) {
    right = SubtractModulo(right, Scale(Mix(keys_[round - 1] ^ left), right_), right_);
    left = SubtractModulo(left, Scale(Mix(keys_[round - 2] ^ right), left_), left_);
  }
  return left * right_ + right;
}

uint64_t Permutation::At(uint64_t index) const {
  if (!values_.empty()) return values_[index];
  do index = Forward(index);
  while (index >= size_);
  return index;
}

uint64_t Permutation::IndexOf(uint64_t value) const {
  if (!indices_.empty()) return indices_[value];
  do value = Backward(value);
  while (value >= size_);
  return value;
}

}  // namespace lockstep::sampling
