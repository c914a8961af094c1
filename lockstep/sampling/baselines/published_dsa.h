// Joader's dependent sampling (NeurIPS 2022) as its code has it, to compare with: a tree in which each job hangs left
// with what it has alone, and what all jobs from there on share is a node. An item that only some of them share lies at
// several places and is shared by none. Items of a node are bits in chunks of 128; the code draws a chunk first, each
// with the same chance however few bits it has left, and then a bit: items of empty chunks come too often. Chances are
// floats.
#pragma once

#include <array>
#include <map>

#include "lockstep/sampling/levels.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling::baselines {

class ChunkedBits {
 public:
  void Add(Item item);
  void Remove(Item item);
  size_t size() const { return size_; }
  Item Any(Rng& rng) const;  // of any chunk that is not empty, with the same chance; requires size() > 0

 private:
  static constexpr Item kChunk = 128;
  using Bits = std::array<uint64_t, 2>;
  std::map<Item, Bits> chunks_;  // that are not empty
  size_t size_ = 0;
};

class PublishedDsa final : public Sampler {
 public:
  explicit PublishedDsa(const SamplerOptions& options) : needs_(options.universe), rng_(Hash(options.seed, 0)) {}
  void Begin(const EpochStart& start) override;
  void Leave(int job) override;
  void Draw(std::span<const int> takers, std::span<Item> picks) override;
  uint64_t Left(int job) const override;
  bool Needs(int job, Item item) const override { return needs_.Needs(static_cast<size_t>(job), item); }
  std::optional<uint64_t> Ahead(int /*job*/, Item /*item*/) const override { return std::nullopt; }
  bool KnowsOrder() const override { return false; }

 private:
  struct Node {
    int job = 0;
    ChunkedBits shared;  // by this job and all that have more left, and not by all jobs of the node above
    ChunkedBits own;     // of the job, and shared with no node
  };
  size_t DepthOf(Item item) const;
  void Place(Item item, bool add);
  void Build(std::span<const int> takers);
  void Decide(std::vector<Item>& drawn);

  NeedTable needs_;
  Rng rng_;
  std::map<int, uint64_t> left_;
  std::vector<Node> nodes_;
};

}  // namespace lockstep::sampling::baselines
