// What of a layout leaves the seconds and bytes of a layer as they are: a search computes those once for all of it.
#pragma once

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct Variant {
  Schedule schedule = Schedule::k1F1B;
  int chunks = 1, zero = 0;
  Recompute recompute = Recompute::kNone;
  double recomputed_share = 0;                     // of the layers; follows from the memory where kAsNeeded
  bool hides_data = true, hides_transfers = true;  // beside computing
};

inline Variant VariantOf(const Workload& w) {
  return {w.schedule, w.chunks, w.zero, w.recompute, 0, w.hides_data, w.hides_transfers};
}

}  // namespace lockstep::plan
