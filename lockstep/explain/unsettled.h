// What files of some ranks only leave open: communication with ranks that are absent may be slow, or may wait for one
// of them; their files would tell.
#pragma once

#include <vector>

#include "lockstep/trace/kineto_job.h"

namespace lockstep::explain {

struct Unsettled {
  double at_most_s = 0;    // per step: what it would gain, did communication with absent ranks take no time
  std::vector<int> ranks;  // absent ones, those first that take part in most of it
};

Unsettled FindUnsettled(const trace::KinetoJob& traced);

}  // namespace lockstep::explain
