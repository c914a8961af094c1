#include "lockstep/plan/search_space.h"

#include <algorithm>

#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

constexpr int kMostContext = 64, kMostChunks = 16, kMostFewer = 8;

std::vector<int> DivisorsOf(int64_t value, int64_t most) {
  std::vector<int> divisors;
  for (int64_t divisor = 1; divisor <= std::min(value, most); ++divisor)
    if (value % divisor == 0) divisors.push_back(static_cast<int>(divisor));
  return divisors;
}

std::vector<int> ZerosOf(const Workload& w, const SearchSpace& space) {
  if (w.shard > 0) return {3};
  if (w.dp * w.cp == 1) return {1};
  if (space.whole) return {0, 1, 2, 3};
  return w.pp > 1 ? std::vector{1} : std::vector{1, 3};
}

// Where ZeRO 3 is tried.
std::vector<int> ShardsOf(const Workload& w, const SearchSpace& space) {
  const int within = w.machine.domain / w.tp;
  const bool splits = within > 1 && within < w.Replicas() && w.Replicas() % within == 0;
  return space.shards_in_domains && splits && (space.whole || w.pp == 1) ? std::vector{0, within} : std::vector{0};
}

// Over tp: the sequence, what is routed to experts, or nothing.
struct TokenSplit {
  bool of_sequence = false, of_routed = false;
};
std::vector<TokenSplit> TokenSplitsOf(const Workload& w, const SearchSpace& space) {
  std::vector<TokenSplit> all = {{.of_sequence = w.sequence_parallel}};
  if (space.whole && w.sequence_parallel) all.push_back({});
  if ((space.whole || !w.sequence_parallel) && w.tp > 1 && w.ep > 1) all.push_back({.of_routed = true});
  return all;
}

void AddMemory(const Workload& w, const SearchSpace& space, Variant variant, std::vector<Variant>& all) {
  for (const int zero : ZerosOf(w, space)) {
    variant.zero = zero;
    for (const Offload offload : space.offloads) {
      if (offload.weights && !w.CanOffloadWeights(zero)) continue;
      variant.offload = offload;
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kAsNeeded, Recompute::kFull}) {
        if (recompute == Recompute::kSelective && !space.whole) continue;
        variant.recompute = recompute;
        all.push_back(variant);
      }
    }
  }
}

}  // namespace

void EachSplit(const Workload& base, const Visit& visit) {
  Workload w = base;
  w.stage_layers.clear();
  for (const int tp : DivisorsOf(base.heads, base.machine.domain)) {
    if (base.accelerators % tp != 0 || !base.CanSplitHeads(tp)) continue;
    w.tp = tp;
    for (const int pp : DivisorsOf(base.accelerators / tp, base.layers)) {
      w.pp = pp;
      const int left = base.accelerators / tp / pp;
      for (const int cp : DivisorsOf(left, kMostContext)) {
        if (cp > 1 && base.sequence % (2 * cp) != 0) continue;
        w.cp = cp;
        w.dp = left / cp;
        w.sequence_parallel = w.CanSplitSequence();
        if (base.global_batch % w.dp != 0) continue;
        // EachLayer leaves out what the ranks that send tokens of their own don't divide.
        const int64_t most = w.Replicas() * tp;
        for (const int ep : DivisorsOf(std::max(1, base.experts), most)) {
          if (most % ep != 0) continue;
          w.ep = ep;
          visit(w);
        }
      }
    }
  }
}

void EachLayer(const Workload& split, const SearchSpace& space, const Visit& visit) {
  // Both ways, where the usual one is not off already.
  const auto ways = [&](bool usual) {
    return space.whole && usual ? std::vector<char>{1, 0} : std::vector<char>{static_cast<char>(usual)};
  };
  Workload w = split;
  for (const int microbatch : DivisorsOf(w.global_batch / w.dp, w.global_batch)) {
    w.microbatch = microbatch;
    for (const int shard : ShardsOf(split, space))
      for (const int moe_chunks : split.ep > 1 ? space.moe_chunks : std::vector<int>{1})
        for (const TokenSplit tokens : TokenSplitsOf(split, space))
          for (const char flash : ways(split.flash))
            for (const char hides_tensor : ways(split.hides_tensor && split.tp > 1)) {
              w.shard = shard, w.moe_chunks = moe_chunks;
              w.sequence_parallel = tokens.of_sequence, w.gathers_routed = tokens.of_routed;
              w.flash = flash != 0;
              w.hides_tensor = hides_tensor != 0 || split.tp == 1;
              if (w.TokenRanks() % w.ep == 0 && w.CanShareExperts()) visit(w);
            }
  }
}

// With d layers fewer on the first stage and e on the last, d + e = middle x pp - layers.
std::vector<UnevenStages> UnevenStagesOf(const Workload& w, const SearchSpace& space) {
  std::vector<UnevenStages> all;
  if (!space.uneven || w.pp < 2) return all;
  for (int middle = (w.layers + w.pp - 1) / w.pp; middle * w.pp - w.layers <= 2 * kMostFewer; ++middle) {
    const int fewer = middle * w.pp - w.layers;
    for (int first = middle - std::min(fewer, kMostFewer); fewer > 0 && first <= middle; ++first) {
      const int last = middle - (fewer - (middle - first));
      if (first < 1 || last < 1 || last < middle - kMostFewer) continue;
      if (w.pp > 2 || std::max(first, last) == middle) all.push_back({first, middle, last});
    }
  }
  return all;
}

std::vector<int> ListOf(const UnevenStages& stages, int pp) {
  std::vector<int> all(size_t(pp), stages.middle);
  all.front() = stages.first, all.back() = stages.last;
  return all;
}

std::vector<Variant> VariantsOf(const Workload& w, const SearchSpace& space, bool uneven) {
  std::vector<Variant> all;
  if (!uneven && w.layers % w.pp != 0) return all;
  const bool differ = uneven || !w.AllStagesAlike();
  for (const Schedule schedule : space.schedules) {
    if (differ && schedule == Schedule::kDualPipe) continue;
    const bool interleaves = w.pp > 1 && schedule == Schedule::k1F1B && !differ;
    for (const int chunks : DivisorsOf(interleaves ? w.layers / w.pp : 1, kMostChunks)) {
      Variant variant = VariantOf(w);
      variant.schedule = schedule, variant.chunks = chunks;
      if (CanRun(variant, w.pp, w.Microbatches())) AddMemory(w, space, variant, all);
    }
  }
  return all;
}

}  // namespace lockstep::plan
