// What files leave open: communication with ranks that are absent may be slow, or may wait for one of them, and their
// files would tell; so may communication of which no file tells with whom it was.
#pragma once

#include <vector>

#include "lockstep/trace/kineto_job.h"

namespace lockstep::explain {

struct Unsettled {
  double at_most_s = 0;    // per step: what it would gain, did such communication take no time
  std::vector<int> ranks;  // absent ones, those first that take part in most of it
  // There is no collective, of more than a little of the time of all, whose members are all known and here. (Transfers
  // between stages are told apart only where all ranks are.)
  bool all_collectives = false;
  // Communications between ranks that are given, of which no rank met another; and the share that they have of the time
  // of all.
  size_t unmatched = 0, communications = 0;
  double unmatched_share = 0;
};

// Of each op, whether it communicates with nobody that is known.
std::vector<bool> AreSingle(const trace::TracedJob& job);

Unsettled FindUnsettled(const trace::KinetoJob& traced);

}  // namespace lockstep::explain
