// What of a layout leaves the seconds and bytes of a layer as they are: a search computes those once for all of it.
#pragma once

#include <algorithm>

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct Variant {
  Schedule schedule = Schedule::k1F1B;
  int chunks = 1, zero = 0;
  Recompute recompute = Recompute::kNone;
  int recomputed_layers = 0;  // of each stage; of kFull 0 is all; follows from the memory where kAsNeeded
  Offload offload;
  bool hides_data = true, hides_transfers = true;  // beside computing
};

// Everything that can be hidden, data shown, transfers shown, both.
inline constexpr int kWaysToHide = 4;
inline void TakeWay(int way, Variant& v) { v.hides_data = (way & 1) == 0, v.hides_transfers = (way & 2) == 0; }

inline Variant VariantOf(const Workload& w) {
  return {w.schedule, w.chunks, w.zero, w.recompute, w.recomputed_layers, w.offload, w.hides_data, w.hides_transfers};
}

// Of `layers` of a stage that have a backward pass, those that are computed again as a whole.
inline double RecomputedOf(const Variant& v, double layers) {
  if (v.recompute == Recompute::kFull && v.recomputed_layers == 0) return layers;
  const bool computes = v.recompute == Recompute::kFull || v.recompute == Recompute::kAsNeeded;
  return computes ? std::min<double>(v.recomputed_layers, layers) : 0;
}

}  // namespace lockstep::plan
