#include "lockstep/sampling/baselines/published_dsa.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "lockstep/base/check.h"

namespace lockstep::sampling::baselines {

void ChunkedBits::Add(Item item) {
  chunks_[item / kChunk][item % kChunk / 64] |= uint64_t{1} << (item % 64);
  ++size_;
}

void ChunkedBits::Remove(Item item) {
  const auto chunk = chunks_.find(item / kChunk);
  chunk->second[item % kChunk / 64] &= ~(uint64_t{1} << (item % 64));
  if (chunk->second == Bits{}) chunks_.erase(chunk);
  --size_;
}

Item ChunkedBits::Any(Rng& rng) const {
  const auto chunk = std::next(chunks_.begin(), static_cast<ptrdiff_t>(rng.Below(chunks_.size())));
  const auto count = [](uint64_t word) { return static_cast<uint64_t>(std::popcount(word)); };
  uint64_t at = rng.Below(count(chunk->second[0]) + count(chunk->second[1]));
  size_t word = 0;
  if (at >= count(chunk->second[0])) at -= count(chunk->second[word++]);
  uint64_t bits = chunk->second[word];
  for (; at > 0; --at) bits &= bits - 1;
  return chunk->first * kChunk + static_cast<Item>(word * 64) + static_cast<Item>(std::countr_zero(bits));
}

void PublishedDsa::Begin(const EpochStart& start) {
  needs_.Reserve(start.job + 1);
  for (const Item item : start.items) needs_.Set(static_cast<size_t>(start.job), item, true);
  left_[start.job] = start.items.size();
  nodes_.clear();
}

void PublishedDsa::Leave(int job) {
  for (Item item = 0; item < needs_.universe(); ++item) needs_.Set(static_cast<size_t>(job), item, false);
  left_.erase(job);
  nodes_.clear();
}

uint64_t PublishedDsa::Left(int job) const {
  const auto found = left_.find(job);
  return found == left_.end() ? 0 : found->second;
}

// The node whose job and all below it need the item; nodes_.size() if there is none.
size_t PublishedDsa::DepthOf(Item item) const {
  size_t depth = nodes_.size();
  while (depth > 0 && needs_.Needs(static_cast<size_t>(nodes_[depth - 1].job), item)) --depth;
  return depth;
}

void PublishedDsa::Place(Item item, bool add) {
  const size_t depth = DepthOf(item);
  const auto change = [&](ChunkedBits& bits) { add ? bits.Add(item) : bits.Remove(item); };
  if (depth < nodes_.size()) change(nodes_[depth].shared);
  for (size_t i = 0; i < depth; ++i) {
    if (needs_.Needs(static_cast<size_t>(nodes_[i].job), item)) change(nodes_[i].own);
  }
}

void PublishedDsa::Build(std::span<const int> takers) {
  const auto by_left = [&](const Node& a, const Node& b) { return left_.at(a.job) < left_.at(b.job); };
  const auto same = [&](const Node& node) { return std::find(takers.begin(), takers.end(), node.job) != takers.end(); };
  if (nodes_.size() == takers.size() && std::all_of(nodes_.begin(), nodes_.end(), same) &&
      std::is_sorted(nodes_.begin(), nodes_.end(), by_left))
    return;
  nodes_.clear();
  for (const int job : takers) nodes_.push_back({.job = job, .shared = {}, .own = {}});
  std::stable_sort(nodes_.begin(), nodes_.end(), by_left);
  for (Item item = 0; item < needs_.universe(); ++item) Place(item, true);
}

void PublishedDsa::Decide(std::vector<Item>& drawn) {
  size_t excluded = 0, looked_at = 0;
  for (size_t first = 0; first < nodes_.size();) {
    size_t common = 0;
    for (size_t i = looked_at; i <= first; ++i) common += nodes_[i].shared.size();
    auto last = static_cast<float>(common);
    size_t end = first;
    for (; end < nodes_.size(); ++end) {
      const auto left = static_cast<float>(left_.at(nodes_[end].job) - excluded);
      if (static_cast<float>(rng_.Uniform()) >= last / left) break;
      last = left;
    }
    if (end > first) {
      uint64_t at = rng_.Below(common);
      size_t node = looked_at;
      while (at >= nodes_[node].shared.size()) at -= nodes_[node++].shared.size();
      const Item item = nodes_[node].shared.Any(rng_);
      for (size_t i = first; i < end; ++i) drawn[i] = item;
    } else {
      drawn[end++] = nodes_[first].own.Any(rng_);
    }
    excluded += common;
    looked_at = first + 1;
    first = end;
  }
}

void PublishedDsa::Draw(std::span<const int> takers, std::span<Item> picks) {
  Build(takers);
  std::vector<Item> drawn(nodes_.size());
  Decide(drawn);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Place(drawn[i], false);
    needs_.Set(static_cast<size_t>(nodes_[i].job), drawn[i], false);
    Place(drawn[i], true);
    --left_.at(nodes_[i].job);
    const auto taker = std::find(takers.begin(), takers.end(), nodes_[i].job) - takers.begin();
    picks[static_cast<size_t>(taker)] = drawn[i];
  }
}

}  // namespace lockstep::sampling::baselines
