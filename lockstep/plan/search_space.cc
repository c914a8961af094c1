#include "lockstep/plan/search_space.h"

#include <algorithm>

#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

constexpr int kMostContext = 64, kMostMicrobatch = 64, kMostChunks = 16;

std::vector<int> DivisorsOf(int64_t value, int64_t most) {
  std::vector<int> divisors;
  for (int64_t divisor = 1; divisor <= std::min(value, most); ++divisor)
    if (value % divisor == 0) divisors.push_back(static_cast<int>(divisor));
  return divisors;
}

void EachMemory(const Workload& scheduled, const Visit& visit) {
  Workload w = scheduled;
  for (const int zero : {1, 3}) {
    // Else weights are gathered for each microbatch of each stage.
    if (zero == 3 && (w.pp > 1 || w.dp * w.cp == 1)) continue;
    w.zero = zero;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kAsNeeded, Recompute::kFull}) {
      w.recompute = recompute;
      visit(w);
    }
  }
}

}  // namespace

void EachSplit(const Workload& base, const Visit& visit) {
  Workload w = base;
  w.stage_layers.clear();
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

void EachSchedule(const Workload& split, std::span<const Schedule> schedules, const Visit& visit) {
  Workload w = split;
  for (const int microbatch : DivisorsOf(w.global_batch / w.dp, kMostMicrobatch)) {
    w.microbatch = microbatch;
    for (const Schedule schedule : schedules) {
      if (w.pp == 1 && schedule != Schedule::k1F1B) continue;
      w.schedule = schedule;
      const bool interleaves = w.pp > 1 && schedule == Schedule::k1F1B;
      for (const int chunks : DivisorsOf(interleaves ? w.layers / w.pp : 1, kMostChunks)) {
        w.chunks = chunks;
        if (CheckSchedule(w).ok()) EachMemory(w, visit);
      }
    }
  }
}

}  // namespace lockstep::plan
