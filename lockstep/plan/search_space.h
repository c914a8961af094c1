// The layouts that a search tries. Of each all that divides: tp the heads, within a domain of fast links; pp the
// layers, or not, where stages are uneven; cp the sequence in twice as many pieces; ep the experts, over ranks that
// share none; dp is what is left and has to divide the batch. They come in three steps, because what one step has in
// common is computed once.
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
  // Stages that differ, too: those in the middle alike, first and last with as many layers or up to eight fewer.
  bool uneven = true;
  std::vector<Offload> offloads = {{}};
  std::vector<int> moe_chunks = {1};  // where experts are spread
  bool shards_in_domains = false;     // with ZeRO 3, too, among the replicas of a domain of fast links alone (HSDP)
};

using Visit = std::function<void(const Workload&)>;
// tp, pp, cp, ep and dp.
void EachSplit(const Workload& base, const Visit& visit);
// Of a split, what changes the seconds of a layer or its share of the states: microbatch, replicas that share, pieces
// of an exchange of experts, and of the whole space sequence parallelism, attention, hiding of tensor parallelism.
void EachLayer(const Workload& split, const SearchSpace& space, const Visit& visit);
// Of those the stages that differ, first and last; nothing under schedules that can't have them. Uneven ones have no
// interleaving and no DualPipe.
struct UnevenStages {
  int first = 0, middle = 0, last = 0;
};
std::vector<UnevenStages> UnevenStagesOf(const Workload& split, const SearchSpace& space);
// The layers of each stage.
std::vector<int> ListOf(const UnevenStages& stages, int pp);
// The rest, in groups that need the same memory: the last two members of a variant are left as they are. Those that
// differ in recomputation alone follow each other, from none to all. `uneven`: of stages that differ.
std::vector<Variant> VariantsOf(const Workload& layer, const SearchSpace& space, bool uneven);

}  // namespace lockstep::plan
