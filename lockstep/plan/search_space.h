// The layouts that a search tries. Of each all that divides: tp the heads, within a domain of fast links; pp the
// layers; cp the sequence in twice as many pieces; ep the experts, over ranks that share none; dp is what is left and
// has to divide the batch. They come in three steps, because what one step has in common is computed once.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/plan/variant.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct SearchSpace {
  std::vector<Schedule> schedules = {Schedule::k1F1B};
  // Usual: ZeRO 1, or 3 without a pipeline; recomputation of none, as needed or all; sequence parallelism with tp;
  // fused attention; communication hidden as far as it can be. Whole: these each both ways, ZeRO 0 to 3, selective
  // recomputation.
  bool whole = false;
};

using Visit = std::function<void(const Workload&)>;
// tp, pp, cp, ep and dp.
void EachSplit(const Workload& base, const Visit& visit);
// Of a split, what changes the seconds of a layer: microbatch, and of the whole space sequence parallelism, attention,
// hiding of tensor parallelism.
void EachLayer(const Workload& split, const SearchSpace& space, const Visit& visit);
// Of those the rest, in groups that need the same memory: the last two members of a variant are left as they are.
std::vector<Variant> VariantsOf(const Workload& layer, const SearchSpace& space);

}  // namespace lockstep::plan
