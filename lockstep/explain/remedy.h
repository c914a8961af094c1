// A candidate for a cause: what the durations and delays would be without it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/explain/cause.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::explain {

// What each op takes, [op * lanes + lane], s: as measured at first, then without the causes found so far.
struct Times {
  std::vector<float> durations;
  std::vector<float> delays;
};

// (cell, what it takes instead); a cell once at most.
using CellTimes = std::vector<std::pair<uint32_t, float>>;

struct Remedy {
  Cause cause;
  CellTimes durations, delays;
  // Of a heavy stage, what can be done about it without less work: its surplus on all stages alike. What each op's
  // duration is multiplied by, in all lanes.
  std::vector<std::pair<uint32_t, double>> balanced;
};

class Passes;
class SlowWorkers;

// Each looks at the times for one kind of cause, or two, and answers those that stand out. Whether it matters a replay
// says.
std::vector<Remedy> FindSlowWorkers(const Passes& passes, const SlowWorkers& workers);
std::vector<Remedy> FindSlowStages(const Passes& passes);
std::vector<Remedy> FindSequenceLengths(const Passes& passes, const SlowWorkers& workers);
std::vector<Remedy> FindPauses(const Passes& passes);
std::vector<Remedy> FindSlowLinks(const Passes& passes);
std::vector<Remedy> FindSlowRings(const Passes& passes);
std::vector<Remedy> FindSlowFabric(const Passes& passes);
std::vector<Remedy> FindLateStarts(const Passes& passes);
std::vector<Remedy> FindCollections(const Passes& passes);
std::vector<Remedy> FindSlowTails(const Passes& passes);
std::vector<Remedy> FindSlowOptimizers(const Passes& passes);
std::vector<Remedy> FindDataWaits(const trace::TracedJob& job, const Times& times);

}  // namespace lockstep::explain
