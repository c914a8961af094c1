#include "lockstep/plan/search.h"

#include <algorithm>
#include <functional>

namespace lockstep::plan {
namespace {

constexpr int kMostContext = 64, kMostMicrobatch = 64, kMostChunks = 16;

std::vector<int> DivisorsOf(int64_t value, int64_t most) {
  std::vector<int> divisors;
  for (int64_t divisor = 1; divisor <= std::min(value, most); ++divisor)
    if (value % divisor == 0) divisors.push_back(static_cast<int>(divisor));
  return divisors;
}

using Visit = std::function<void(const Workload&)>;

// The layouts of ranks: tp splits heads and stays where links are fast, pp layers, cp the sequence in twice as many
// pieces, ep experts over the ranks that share none; dp takes the rest and has to divide the batch.
void EachSplit(const Workload& base, const Visit& visit) {
  Workload w = base;
  for (const int tp : DivisorsOf(base.heads, base.machine.domain)) {
    if (base.accelerators % tp != 0) continue;
    w.tp = tp;
    w.sequence_parallel = tp > 1;
    for (const int pp : DivisorsOf(base.layers, base.accelerators / tp)) {
      if (base.accelerators / tp % pp != 0) continue;
      w.pp = pp;
      const int left = base.accelerators / tp / pp;
      for (const int cp : DivisorsOf(left, kMostContext)) {
        if (cp > 1 && base.sequence % (2 * cp) != 0) continue;
        w.cp = cp;
        w.dp = left / cp;
        if (base.global_batch % w.dp != 0) continue;
        for (const int ep : DivisorsOf(std::max(1, base.experts), int64_t{w.dp} * cp)) {
          if (int64_t{w.dp} * cp % ep != 0) continue;
          w.ep = ep;
          visit(w);
        }
      }
    }
  }
}

void EachSchedule(const Workload& split, const Visit& visit) {
  Workload w = split;
  const int layers = w.layers / w.pp, per_rank = w.global_batch / w.dp;
  for (const int microbatch : DivisorsOf(per_rank, kMostMicrobatch)) {
    w.microbatch = microbatch;
    for (const int chunks : DivisorsOf(w.pp > 1 ? layers : 1, kMostChunks)) {
      if (chunks > 1 && w.Microbatches() % w.pp != 0) continue;
      w.chunks = chunks;
      for (const int zero : {1, 3}) {
        if (zero == 3 && (w.pp > 1 || w.dp * w.cp == 1))
          continue;  // weights gathered for each microbatch of each stage
        w.zero = zero;
        for (const Recompute recompute : {Recompute::kNone, Recompute::kAsNeeded, Recompute::kFull}) {
          w.recompute = recompute;
          visit(w);
        }
      }
    }
  }
}

bool IsFaster(const Candidate& a, const Candidate& b) { return a.step.total().value < b.step.total().value; }

std::vector<Candidate> ParetoOf(std::vector<Candidate> all) {
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.memory.total(), a.step.total().value) < std::pair(b.memory.total(), b.step.total().value);
  });
  std::vector<Candidate> front;
  for (const Candidate& one : all)
    if (front.empty() || IsFaster(one, front.back())) front.push_back(one);
  return front;
}

const char* RecomputeText(const Workload& w) {
  if (w.recompute == Recompute::kFull) return "full";
  return w.recompute == Recompute::kAsNeeded && RecomputedShare(w) > 0 ? "as needed" : "none";
}

}  // namespace

std::string LayoutText(const Workload& w) {
  std::string text = fmt::format("tp {}, pp {}, dp {}", w.tp, w.pp, w.dp);
  if (w.cp > 1) text += fmt::format(", cp {}", w.cp);
  if (w.experts > 0) text += fmt::format(", ep {}", w.ep);
  if (w.chunks > 1) text += fmt::format(", vp {}", w.chunks);
  return text + fmt::format(", zero {}, mbs {}, recompute {}", w.zero, w.microbatch, RecomputeText(w));
}

// The front is of the fastest of each split only, or it would be of all candidates.
SearchResult Search(const Workload& base, const Rates& rates, const SearchOptions& options) {
  SearchResult result;
  std::vector<Candidate> fronts;
  EachSplit(base, [&](const Workload& split) {
    std::vector<Candidate> fitting;
    EachSchedule(split, [&](const Workload& w) {
      ++result.tried;
      Candidate one{w, {}, PredictMemory(w)};
      const bool fits = one.memory.total() <= w.machine.memory;
      const bool as_none = w.recompute == Recompute::kAsNeeded && RecomputedShare(w) == 0;
      if (!fits && (result.nearest.empty() || one.memory.total() < result.nearest[0].memory.total()))
        result.nearest = {one};
      if (!fits || as_none) return;
      ++result.fitting;
      one.step = PredictStep(w, rates);
      fitting.push_back(std::move(one));
    });
    const std::vector<Candidate> front = ParetoOf(fitting);
    fronts.insert(fronts.end(), front.begin(), front.end());
    const size_t kept = std::min(options.keep, fitting.size());
    std::partial_sort(fitting.begin(), fitting.begin() + static_cast<std::ptrdiff_t>(kept), fitting.end(), IsFaster);
    result.best.insert(result.best.end(), fitting.begin(), fitting.begin() + static_cast<std::ptrdiff_t>(kept));
    std::stable_sort(result.best.begin(), result.best.end(), IsFaster);
    if (result.best.size() > options.keep)
      result.best.erase(result.best.begin() + static_cast<std::ptrdiff_t>(options.keep), result.best.end());
  });
  if (result.fitting > 0) result.nearest.clear();
  result.pareto = ParetoOf(std::move(fronts));
  return result;
}

}  // namespace lockstep::plan
