// Which rank, or which way between two ranks, slows a running job down? docs/models/detect.md, "Slowness seen in
// collectives", has the reasoning.
//
// A rank is slow that is longer by itself before a collective than the others, and for whom they then wait: what it
// lost inside of collectives is others' doing and does not count. A way is slow whose message, the first of a
// collective, is long under way once both ends have come; later messages are delayed by each other and tell nothing.
// What a rank waited for its data service is told apart: it is not slow itself.
//
// Pure: the findings are a function of the set of ops, whatever their order. Requires times (created_ns, duration_ns);
// without them nothing is found. Cost: linear in ops, but for a sort.
#pragma once

#include <string>
#include <vector>

#include "lockstep/detect/comm_thresholds.h"
#include "lockstep/incident/incident.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

struct SlownessVerdict {
  std::vector<incident::Finding> findings;
  // Why it does not tell, where it has no findings, that nothing is slow: too few collectives, or too many that are not
  // known of nearly all members; ways that look slow by too few messages; or it does not reach back far enough for
  // steps as long as those of its job. Empty: it does tell, or has no times at all.
  std::string too_short;
};

SlownessVerdict JudgeSlowness(const trace::CommLog& log, const CommThresholds& thresholds);

// Over the whole log: the steps take longer from some moment on until the end. Nobody is named; asked where nobody is
// to be, it is an answer of its own.
std::vector<incident::Finding> FindTrend(const trace::CommLog& log, const CommThresholds& thresholds);

}  // namespace lockstep::detect
