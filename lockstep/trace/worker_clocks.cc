#include "lockstep/trace/worker_clocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/clocks.h"

namespace lockstep::trace {
namespace {

constexpr double kNanosPerSecond = 1e9;
constexpr double kOff = double{kOffClock} * kNanosPerSecond;
constexpr double kSteady = 0.1;    // of how far off a clock is: how far its ends lie from each other, at most
constexpr size_t kFewestEnds = 3;  // fewer may lie together by chance

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

using Offsets = std::vector<std::optional<double>>;  // [dp * pp + stage], ns to be added; nothing: not told

// What a step's communications say of the clocks: they end on all their members together.
Offsets ClocksInStep(const TracedJob& job, size_t set) {
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
  const std::vector<ClockOffset> clocks = FitClocks(static_cast<size_t>(job.dp) * static_cast<size_t>(job.pp), ends);
  Offsets offsets(clocks.size());
  for (const Ends& members : ends)
    for (const auto& [worker, end] : members) offsets[worker] = clocks[worker].offset_ns;
  // Of two workers one is off, not both by half of it.
  std::vector<double> told;
  for (const std::optional<double>& offset : offsets)
    if (offset) told.push_back(*offset);
  const double middle = LowerMedian(std::move(told));
  for (std::optional<double>& offset : offsets)
    if (offset) *offset -= middle;
  return offsets;
}

// [step][worker]. Where a step doesn't tell of a worker's clock, the nearest do that tell, on both sides.
std::vector<Offsets> ClocksOf(const TracedJob& job, size_t threads) {
  const size_t sets = job.steps.size();
  std::vector<Offsets> clocks(sets);
  ParallelFor(sets, threads, [&](size_t set, size_t /*worker*/) { clocks[set] = ClocksInStep(job, set); });
  for (size_t worker = 0; worker < clocks.front().size(); ++worker) {
    std::optional<size_t> told;  // the last step so far
    const auto fill = [&](size_t until) {
      const size_t begin = told ? *told + 1 : 0;
      for (size_t set = begin; set < until; ++set) {
        const std::optional<double> before = told ? clocks[*told][worker] : std::nullopt,
                                    behind = until < sets ? clocks[until][worker] : std::nullopt;
        const double passed = told ? static_cast<double>(set - *told) / static_cast<double>(until - *told) : 0;
        if (before && behind)
          clocks[set][worker] = *before + passed * (*behind - *before);
        else
          clocks[set][worker] = before ? before : behind;
      }
    };
    for (size_t set = 0; set < sets; ++set)
      if (clocks[set][worker]) fill(set), told = set;
    fill(sets);
  }
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

// [worker][step]: how far behind the middle of their groups a worker's collectives end; s.
std::vector<std::vector<std::vector<float>>> EndsBehind(const TracedJob& job, size_t threads) {
  const size_t sets = job.steps.size();
  std::vector<std::vector<std::vector<float>>> behind(static_cast<size_t>(job.dp) * static_cast<size_t>(job.pp),
                                                      std::vector<std::vector<float>>(sets));
  ParallelFor(sets, threads, [&](size_t set, size_t /*worker*/) {
    std::vector<std::pair<size_t, float>> ends;  // by worker
    for (const graph::Unit& unit : job.graph.units) {
      if (unit.scope == graph::Scope::kLane || !IsDataParallelComm(job.ops[unit.first].type)) continue;
      ends.clear();
      std::vector<float> moments;
      EachCell(job, unit, job.graph.first_lane[set], job.graph.first_lane[set + 1],
               [&](uint32_t op, size_t lane, size_t cell) {
                 moments.push_back(job.starts[cell] + job.durations[cell]);
                 ends.emplace_back(WorkerOf(job, op, lane), moments.back());
               });
      if (ends.size() < 2) continue;
      const float middle = LowerMedian(std::move(moments));
      for (const auto& [worker, end] : ends) behind[worker][set].push_back(end - middle);
    }
  });
  return behind;
}

// How far the one usually is from the one before, of so many at least.
float StepwiseSpread(const std::vector<std::vector<float>>& of_steps, size_t fewest) {
  std::vector<float> apart;
  std::optional<float> last;
  for (const std::vector<float>& values : of_steps)
    for (const float value : values) {
      if (last) apart.push_back(std::abs(value - *last));
      last = value;
    }
  if (apart.size() + 1 < fewest) return std::numeric_limits<float>::infinity();
  return LowerMedian(std::move(apart));
}

// [worker]: it has rows in doubt. The rest of its rows, however few, tell its clock then: nothing else does.
std::vector<bool> AreInDoubt(const TracedJob& job) {
  std::vector<bool> in_doubt(static_cast<size_t>(job.dp) * static_cast<size_t>(job.pp));
  if (job.put_back.empty()) return in_doubt;
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t lane = 0; lane < job.lanes.size(); ++lane)
      if (PutBackOf(job, job.graph.Cell(op, lane)) == PutBack::kDoubtful) in_doubt[WorkerOf(job, op, lane)] = true;
  return in_doubt;
}

// In how many steps which workers' collectives end before or behind those of their groups, all by about as much: no
// transfer comes out below zero by a clock that is ahead by less than a collective takes.
uint64_t StepsOffByEnds(const TracedJob& job, size_t threads) {
  const std::vector<std::vector<std::vector<float>>> behind = EndsBehind(job, threads);
  const std::vector<bool> in_doubt = AreInDoubt(job);
  uint64_t off = 0;
  for (size_t worker = 0; worker < behind.size(); ++worker) {
    const auto spread = static_cast<double>(StepwiseSpread(behind[worker], in_doubt[worker] ? 1 : kFewestEnds));
    for (const std::vector<float>& ends : behind[worker])
      if (const double by = std::abs(double{LowerMedian(ends)}); by >= double{kOffClock} && spread <= kSteady * by)
        ++off;
  }
  return off;
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

// [worker]: whether its clock is off in some step. It is put right in all of them then: the parts of a few steps would
// else be longer or shorter than those of the others.
std::vector<bool> AreOff(const std::vector<Offsets>& clocks) {
  std::vector<bool> off(clocks.front().size());
  for (const Offsets& of_step : clocks)
    for (size_t worker = 0; worker < off.size(); ++worker)
      if (std::abs(of_step[worker].value_or(0)) >= kOff) off[worker] = true;
  return off;
}

// What the ranks of a stage begin together: a step, and what follows when all gradients are reduced.
bool BeginsTogether(const JobOp& op) {
  return op.sequence == 0 && (op.type == OpType::kForwardCompute || op.type == OpType::kOptimizerClipMainGrad ||
                              op.type == OpType::kOptimizer);
}

bool IsUntold(const TracedJob& job, int dp, int stage) {
  return std::ranges::find(job.untold_clocks, std::pair(dp, stage)) != job.untold_clocks.end();
}

// [dp]: it begins the op with the others by the clock that it was recorded with, and would not by the one that its ends
// tell. Nothing: it never has the op, or was put where the others begin.
std::vector<std::optional<bool>> StaysByStarts(const TracedJob& job, uint32_t op, const ClockShifts& shifts) {
  std::vector<std::vector<float>> apart(static_cast<size_t>(job.dp));  // of steps: by the one clock over by the other
  for (size_t set = 0; set < job.steps.size(); ++set) {
    std::vector<int> ranks;
    std::vector<float> recorded, shifted;
    EachCell(job, {.first = op, .count = 1}, job.graph.first_lane[set], job.graph.first_lane[set + 1],
             [&](uint32_t, size_t lane, size_t cell) {
               if (IsUntold(job, job.lanes[lane].dp, job.ops[op].stage)) return;
               ranks.push_back(job.lanes[lane].dp);
               recorded.push_back(job.starts[cell]);
               shifted.push_back(job.starts[cell] + shifts[set][WorkerOf(job, op, lane)]);
             });
    const float middle = LowerMedian(recorded), shifted_middle = LowerMedian(shifted);
    for (size_t i = 0; i < ranks.size(); ++i) {
      const float before = std::abs(recorded[i] - middle), after = std::abs(shifted[i] - shifted_middle);
      apart[static_cast<size_t>(ranks[i])].push_back(after < kOffClock ? std::numeric_limits<float>::infinity()
                                                                       : before / after);
    }
  }
  std::vector<std::optional<bool>> stays(apart.size());
  for (size_t dp = 0; dp < apart.size(); ++dp)
    if (!apart[dp].empty()) stays[dp] = double{LowerMedian(std::move(apart[dp]))} <= kSteady;
  return stays;
}

// Leaves workers alone whose starts all contradict their ends: not the clock is off, but what is taken for an end.
void LeaveByStarts(const TracedJob& job, ClockShifts& shifts) {
  std::vector<std::optional<bool>> all(shifts.front().size());
  for (uint32_t op = 0; op < job.ops.size(); ++op) {
    if (!BeginsTogether(job.ops[op])) continue;
    const std::vector<std::optional<bool>> stays = StaysByStarts(job, op, shifts);
    for (size_t dp = 0; dp < stays.size(); ++dp)
      if (stays[dp]) {
        std::optional<bool>& worker = all[dp * static_cast<size_t>(job.pp) + static_cast<size_t>(job.ops[op].stage)];
        worker = worker.value_or(true) && *stays[dp];
      }
  }
  for (std::vector<float>& of_step : shifts)
    for (size_t worker = 0; worker < all.size(); ++worker)
      if (all[worker].value_or(false)) of_step[worker] = 0;
}

ClockShifts ShiftsOf(const TracedJob& job, const std::vector<Offsets>& clocks) {
  const std::vector<bool> off = AreOff(clocks);
  ClockShifts shifts;
  for (const Offsets& of_step : clocks) {
    std::vector<float>& shift = shifts.emplace_back(off.size());
    for (size_t worker = 0; worker < off.size(); ++worker)
      if (off[worker]) shift[worker] = static_cast<float>(of_step[worker].value_or(0) / kNanosPerSecond);
  }
  LeaveByStarts(job, shifts);
  return shifts;
}

void Shift(TracedJob& job, const ClockShifts& shifts) {
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t set = 0; set < job.steps.size(); ++set)
      for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane)
        if (const size_t cell = job.graph.Cell(op, lane); !job.graph.IsAbsent(cell))
          job.starts[cell] += shifts[set][WorkerOf(job, op, lane)];
}

}  // namespace

std::vector<double> MendedShares(const TracedJob& job) {
  std::vector<double> shares;
  for (const auto& [receives, collectives] : BelowZero(job, 0, job.lanes.size()))
    shares.push_back(ShareOf({receives.mended + collectives.mended, receives.all + collectives.all}));
  return shares;
}

ClockShifts MendClocks(TracedJob& job, size_t threads) {
  const uint64_t off = StepsOffByEnds(job, threads);
  if (off == 0 && !ClocksDisagree(job)) return {};
  TracedJob mended = job;
  ClockShifts shifts = ShiftsOf(job, ClocksOf(job, threads));
  Shift(mended, shifts);
  TimeSteps(mended, threads);
  for (const std::string_view counter : {kNegativeTransfers, kNegativeDelays}) Forget(mended.counters, counter);
  MeasureParts(mended, threads);
  if (2 * (CountOf(mended, kNegativeTransfers) + StepsOffByEnds(mended, threads)) >
      CountOf(job, kNegativeTransfers) + off)
    return {};
  job = std::move(mended);
  return shifts;
}

void TellClocks(TracedJob& job, const ClockShifts& shifts) {
  for (const std::vector<float>& of_step : shifts)
    for (size_t worker = 0; worker < of_step.size(); ++worker) {
      if (of_step[worker] == 0) continue;
      const auto stages = static_cast<size_t>(job.pp);
      double& told = job.clock_offsets[{static_cast<int>(worker / stages), static_cast<int>(worker % stages)}];
      if (const double shift = double{of_step[worker]}; std::abs(shift) > std::abs(told)) told = shift;
    }
  Count(job.counters, "clocks_off", job.clock_offsets.size());
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
