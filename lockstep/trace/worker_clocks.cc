#include "lockstep/trace/worker_clocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/clocks.h"

namespace lockstep::trace {
namespace {

constexpr double kOff = 1e7;  // ns: a clock that is less off does no harm
constexpr double kNanosPerSecond = 1e9;

uint64_t CountOf(const TracedJob& job, std::string_view name) {
  for (const Counter& counter : job.counters)
    if (counter.name == name) return counter.count;
  return 0;
}

void Forget(std::vector<Counter>& counters, std::string_view name) {
  std::erase_if(counters, [&](const Counter& counter) { return counter.name == name; });
}

size_t WorkerOf(const TracedJob& job, uint32_t op, size_t lane) {
  return static_cast<size_t>(job.lanes[lane].dp) * static_cast<size_t>(job.pp) + static_cast<size_t>(job.ops[op].stage);
}

// Those that were recorded: one that was put back, or may be of another op, tells nothing of clocks.
template <typename Take>
void EachCell(const TracedJob& job, const graph::Unit& unit, size_t first_lane, size_t last_lane, const Take& take) {
  for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
    for (size_t lane = first_lane; lane < last_lane; ++lane)
      if (const size_t cell = job.graph.Cell(op, lane); IsRecorded(job, cell)) take(op, lane, cell);
}

// What a step's communications say of the clocks: they end on all their members together.
std::vector<ClockOffset> ClocksInStep(const TracedJob& job, size_t set) {
  using Ends = std::vector<std::pair<size_t, int64_t>>;
  std::vector<Ends> ends;
  const size_t first = job.graph.first_lane[set], last = job.graph.first_lane[set + 1];
  for (const graph::Unit& unit : job.graph.units) {
    if (!unit.synchronised) continue;
    const bool in_lanes = unit.scope == graph::Scope::kLane;
    const size_t begin = ends.size();
    ends.resize(begin + (in_lanes ? last - first : 1));
    EachCell(job, unit, first, last, [&](uint32_t op, size_t lane, size_t cell) {
      const double end = static_cast<double>(job.starts[cell]) + static_cast<double>(job.durations[cell]);
      ends[begin + (in_lanes ? lane - first : 0)].emplace_back(WorkerOf(job, op, lane),
                                                               std::llround(end * kNanosPerSecond));
    });
  }
  std::erase_if(ends, [](const Ends& members) { return members.size() < 2; });
  std::vector<ClockOffset> clocks = FitClocks(static_cast<size_t>(job.dp) * static_cast<size_t>(job.pp), ends);
  // Of two workers one is off, not both by half of it.
  std::vector<double> offsets;
  offsets.reserve(clocks.size());
  for (const ClockOffset& clock : clocks) offsets.push_back(clock.offset_ns);
  const double middle = LowerMedian(std::move(offsets));
  for (ClockOffset& clock : clocks) clock.offset_ns -= middle;
  return clocks;
}

// Of one worker's receives, or its collectives.
struct Seen {
  size_t mended = 0, all = 0;  // mended: came out below zero
};
double ShareOf(const Seen& seen) {
  return seen.all == 0 ? 0 : static_cast<double>(seen.mended) / static_cast<double>(seen.all);
}

// [dp * pp + stage], in some lanes: its receives, its collectives.
std::vector<std::pair<Seen, Seen>> BelowZero(const TracedJob& job, size_t first_lane, size_t last_lane) {
  std::vector<std::pair<Seen, Seen>> seen(static_cast<size_t>(job.dp) * static_cast<size_t>(job.pp));
  if (CountOf(job, kNegativeTransfers) == 0) return seen;
  for (const graph::Unit& unit : job.graph.units) {
    if (!unit.synchronised) continue;
    EachCell(job, unit, first_lane, last_lane, [&](uint32_t op, size_t lane, size_t cell) {
      if (IsSend(job.ops[op].type)) return;
      auto& [receives, collectives] = seen[WorkerOf(job, op, lane)];
      Seen& own = IsTransfer(job.ops[op].type) ? receives : collectives;
      ++own.all;
      if (IsMended(job, cell)) ++own.mended;
    });
  }
  return seen;
}

// In any step, by any kind of communication: of a host that holds a whole pipeline the collectives alone tell, and a
// clock that leaps late is off in few steps.
bool ClocksDisagree(const TracedJob& job) {
  if (CountOf(job, kNegativeTransfers) == 0) return false;
  for (size_t set = 0; set < job.steps.size(); ++set)
    for (const auto& [receives, collectives] : BelowZero(job, job.graph.first_lane[set], job.graph.first_lane[set + 1]))
      if (std::max(ShareOf(receives), ShareOf(collectives)) >= kClocksDisagree) return true;
  return false;
}

void Shift(TracedJob& job, size_t set, const std::vector<ClockOffset>& clocks) {
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane) {
      const size_t worker = WorkerOf(job, op, lane);
      const double offset = clocks[worker].offset_ns;
      if (std::abs(offset) < kOff || job.graph.IsAbsent(job.graph.Cell(op, lane))) continue;
      job.starts[job.graph.Cell(op, lane)] += static_cast<float>(offset / kNanosPerSecond);
      double& told = job.clock_offsets[{job.lanes[lane].dp, job.ops[op].stage}];
      if (std::abs(offset / kNanosPerSecond) > std::abs(told)) told = offset / kNanosPerSecond;
    }
}

}  // namespace

std::vector<double> MendedShares(const TracedJob& job) {
  std::vector<double> shares;
  for (const auto& [receives, collectives] : BelowZero(job, 0, job.lanes.size()))
    shares.push_back(ShareOf({receives.mended + collectives.mended, receives.all + collectives.all}));
  return shares;
}

void MendClocks(TracedJob& job, size_t threads) {
  if (!ClocksDisagree(job)) return;
  TracedJob mended = job;
  for (size_t set = 0; set < job.steps.size(); ++set) Shift(mended, set, ClocksInStep(job, set));
  TimeSteps(mended, threads);
  for (const std::string_view counter : {kNegativeTransfers, kNegativeDelays}) Forget(mended.counters, counter);
  MeasureParts(mended, threads);
  if (2 * CountOf(mended, kNegativeTransfers) > CountOf(job, kNegativeTransfers)) return;
  Count(mended.counters, "clocks_off", mended.clock_offsets.size());
  job = std::move(mended);
}

void TimeSteps(TracedJob& job, size_t threads) {
  const size_t sets = job.steps.size();
  std::vector<float> first(sets, std::numeric_limits<float>::infinity());
  std::vector<float> last(sets, -std::numeric_limits<float>::infinity());
  const auto each = [&](const auto& take) {
    ParallelFor(threads, threads, [&](size_t part, size_t /*worker*/) {
      for (uint32_t op = 0; op < job.graph.ops(); ++op)
        for (size_t set = sets * part / threads; set < sets * (part + 1) / threads; ++set)
          for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane)
            if (const size_t cell = job.graph.Cell(op, lane); !job.graph.IsAbsent(cell)) take(set, cell);
    });
  };
  each([&](size_t set, size_t cell) {
    if (IsPutBack(job, cell)) return;
    first[set] = std::min(first[set], job.starts[cell]);
    last[set] = std::max(last[set], job.starts[cell] + job.durations[cell]);
  });
  job.step_times.clear();
  for (size_t set = 0; set < sets; ++set) job.step_times.push_back(last[set] - first[set]);
  if (std::ranges::any_of(first, [](float begin) { return begin != 0; }))
    each([&](size_t set, size_t cell) { job.starts[cell] -= first[set]; });
}

}  // namespace lockstep::trace
