#include "lockstep/explain/timeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/base/ranges.h"
#include "lockstep/trace/perfetto.h"

namespace lockstep::explain {
namespace {

using trace::OpType;

constexpr double kMicro = 1e6;
constexpr double kStepsApart = 1.1;  // from begin to begin, in steps
constexpr double kWorthASlice = 1;   // us, in the difference

// Threads of a worker. Transfers of different kinds overlap.
constexpr int kThreads = 6;
constexpr const char* kThreadNames[kThreads] = {"compute",       "forward-send",  "forward-recv",
                                                "backward-send", "backward-recv", "dp-comm"};
int ThreadOf(OpType type) {
  switch (type) {
    case OpType::kForwardSend:
      return 1;
    case OpType::kForwardRecv:
      return 2;
    case OpType::kBackwardSend:
      return 3;
    case OpType::kBackwardRecv:
      return 4;
    default:
      return trace::IsCompute(type) ? 0 : kThreads - 1;
  }
}

// When each chosen step begins in a timeline where the steps take so long, us.
std::vector<double> Begins(const std::vector<size_t>& steps, const std::vector<double>& step_times) {
  std::vector<double> begins(step_times.size());
  double at = 0;
  for (const size_t step : steps) {
    begins[step] = at;
    at += kStepsApart * kMicro * step_times[step];
  }
  return begins;
}

// In turn the costliest and the one that is nearest to the median, of those that are left.
std::vector<size_t> InTurn(const std::vector<double>& costs) {
  std::vector<size_t> costly(costs.size());
  std::iota(costly.begin(), costly.end(), size_t{0});
  std::ranges::stable_sort(costly, std::ranges::greater{}, [&](size_t at) { return costs[at]; });
  std::vector<size_t> usual = costly, order;
  const double median = costs.empty() ? 0 : costs[costly[costly.size() / 2]];
  std::ranges::stable_sort(usual, {}, [&](size_t at) { return std::abs(costs[at] - median); });
  std::vector<uint8_t> taken(costs.size());
  for (size_t next_costly = 0, next_usual = 0; order.size() < costs.size();) {
    const bool is_costly = order.size() % 2 == 0;
    const size_t at = is_costly ? costly[next_costly++] : usual[next_usual++];
    if (std::exchange(taken[at], 1) == 0) order.push_back(at);
  }
  return order;
}

// The first of them, as long as their slices are no more than `most`: at least the costliest, and one to compare it
// with. Ascending.
std::vector<size_t> Fitting(std::vector<size_t> order, const std::vector<size_t>& slices, size_t most) {
  constexpr size_t kFewest = 2;
  size_t count = 0;
  for (size_t all = 0; count < order.size(); ++count) {
    all += slices[order[count]];
    if (count >= kFewest && all > most) break;
  }
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

// In the difference, s: waiting for peers, and what it took longer than ideal.
struct Difference {
  double wait, excess;
  bool has_wait() const { return kMicro * wait >= kWorthASlice; }
  bool has_excess() const { return kMicro * excess >= kWorthASlice; }
};
Difference DifferenceOf(const trace::TracedJob& job, const WhatIf& analysis, uint32_t op, size_t cell) {
  const double transfer = static_cast<double>(job.transfers[cell]);
  return {static_cast<double>(job.durations[cell]) - transfer, transfer - analysis.ideal_durations()[op]};
}

// Of each lane, in the timeline that has most of them: in the difference an op may have two, or none.
std::vector<size_t> SlicesOf(const trace::TracedJob& job, const WhatIf& analysis) {
  std::vector<size_t> ops(job.lanes.size()), differences(job.lanes.size());
  for (uint32_t op = 0; op < job.graph.ops(); ++op)
    for (size_t lane = 0; lane < job.lanes.size(); ++lane) {
      const size_t cell = job.graph.Cell(op, lane);
      if (job.graph.IsAbsent(cell)) continue;
      const Difference difference = DifferenceOf(job, analysis, op, cell);
      ++ops[lane];
      differences[lane] += (difference.has_wait() ? 1U : 0U) + (difference.has_excess() ? 1U : 0U);
    }
  for (size_t lane = 0; lane < ops.size(); ++lane) ops[lane] = std::max(ops[lane], differences[lane]);
  return ops;
}

// "2 of 96 steps (12, 40)"; empty: all.
std::string SomeText(const std::vector<int64_t>& chosen, size_t of, const char* what) {
  if (chosen.size() == of) return "";
  return fmt::format("{} of {} {} ({})", chosen.size(), of, what, RangesText(chosen, {.most = 24}));
}

class Timeline {
 public:
  Timeline(const trace::TracedJob& job, const std::vector<size_t>& dps, std::vector<double> begins,
           trace::TimelineWriter& writer)
      : job_(job), begins_(std::move(begins)), writer_(writer) {
    for (const size_t index : dps) {
      const int dp = static_cast<int>(index);
      writer.NameProcess(dp, fmt::format("DP rank {}", dp));
      for (int stage = 0; stage < job.pp; ++stage)
        for (int thread = 0; thread < kThreads; ++thread)
          writer.NameThread(dp, stage * kThreads + thread,
                            fmt::format("PP rank {}, {}, rank {}", stage, kThreadNames[thread], RankOf(dp, stage)));
    }
  }

  // Seconds since the begin of the step.
  void Add(uint32_t op, size_t set, size_t lane, std::string_view name, double begin_s, double duration_s) {
    const trace::JobOp& one = job_.ops[op];
    const int dp = job_.lanes[lane].dp;
    args_.clear();
    fmt::format_to(std::back_inserter(args_), R"("step":{},"rank":{},"seq_id":{})", job_.steps[set],
                   RankOf(dp, one.stage), one.sequence);
    if (one.microbatch >= 0) fmt::format_to(std::back_inserter(args_), R"(,"mb_id":{})", one.microbatch);
    writer_.AddSlice({dp, one.stage * kThreads + ThreadOf(one.type), name, begins_[set] + kMicro * begin_s,
                      kMicro * duration_s, args_});
  }

 private:
  int32_t RankOf(int dp, int stage) const { return job_.ranks[static_cast<size_t>(dp)][static_cast<size_t>(stage)]; }

  const trace::TracedJob& job_;
  const std::vector<double> begins_;
  trace::TimelineWriter& writer_;
  std::string args_;
};

// Calls what(op, set, lane, cell) for every op that is there and chosen, lane by lane.
template <typename What>
void ForEach(const trace::TracedJob& job, const TimelineChoice& choice, const What& what) {
  for (const size_t set : choice.steps)
    for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane) {
      if (!std::ranges::binary_search(choice.dps, static_cast<size_t>(job.lanes[lane].dp))) continue;
      for (uint32_t op = 0; op < job.graph.ops(); ++op)
        if (const size_t cell = job.graph.Cell(op, lane); !job.graph.IsAbsent(cell)) what(op, set, lane, cell);
    }
}

}  // namespace

TimelineChoice ChooseSlices(const trace::TracedJob& job, const WhatIf& analysis, size_t most) {
  const std::vector<size_t> slices = SlicesOf(job, analysis);
  const size_t steps = job.graph.lane_sets(), dps = static_cast<size_t>(job.dp);
  std::vector<size_t> of_step(steps), of_dp(dps);
  for (size_t step = 0; step < steps; ++step)
    for (size_t lane = job.graph.first_lane[step]; lane < job.graph.first_lane[step + 1]; ++lane)
      of_step[step] += slices[lane];
  TimelineChoice choice;
  choice.steps = Fitting(InTurn(analysis.measured()), of_step, most);
  for (const size_t step : choice.steps)
    for (size_t lane = job.graph.first_lane[step]; lane < job.graph.first_lane[step + 1]; ++lane)
      of_dp[static_cast<size_t>(job.lanes[lane].dp)] += slices[lane];
  choice.dps = Fitting(InTurn(analysis.Blocking(By::kDp).total), of_dp, most);
  std::vector<int64_t> numbers;
  for (const size_t step : choice.steps) numbers.push_back(job.steps[step]);
  const std::string of_steps = SomeText(numbers, steps, "steps");
  const std::string of_dps = SomeText({choice.dps.begin(), choice.dps.end()}, dps, "data-parallel ranks");
  if (!of_steps.empty() || !of_dps.empty())
    choice.left_out = fmt::format(
        "timelines have {}{}{} only, the slowest and those nearest to the median, for a browser to hold them: all "
        "would be {} slices; --steps chooses other steps, --whole-timelines writes all",
        of_steps, of_steps.empty() || of_dps.empty() ? "" : " and ", of_dps,
        std::accumulate(slices.begin(), slices.end(), size_t{0}));
  return choice;
}

absl::Status WriteTimelines(const std::string& directory, const trace::TracedJob& job, const WhatIf& analysis,
                            const TimelineChoice& choice) {
  const auto write = [&](const char* kind, const std::vector<double>& step_times, const auto& fill) {
    auto writer = trace::TimelineWriter::Create(fmt::format("{}/timeline-{}.json.gz", directory, kind));
    if (!writer.ok()) return writer.status();
    Timeline timeline(job, choice.dps, Begins(choice.steps, step_times), *writer);
    fill(timeline);
    return writer->Finish();
  };
  const auto end_of = [&](size_t cell) { return static_cast<double>(job.starts[cell] + job.durations[cell]); };
  LS_RETURN_IF_ERROR(write("original", analysis.measured(), [&](Timeline& timeline) {
    ForEach(job, choice, [&](uint32_t op, size_t set, size_t lane, size_t cell) {
      const double transfer = static_cast<double>(job.transfers[cell]);
      timeline.Add(op, set, lane, trace::OpTypeName(job.ops[op].type), end_of(cell) - transfer, transfer);
    });
  }));
  const std::vector<double> ends = analysis.IdealEnds();
  LS_RETURN_IF_ERROR(write("ideal", analysis.ideal(), [&](Timeline& timeline) {
    ForEach(job, choice, [&](uint32_t op, size_t set, size_t lane, size_t cell) {
      const double ideal = analysis.ideal_durations()[op];
      timeline.Add(op, set, lane, trace::OpTypeName(job.ops[op].type), ends[cell] - ideal, ideal);
    });
  }));
  return write("difference", analysis.measured(), [&](Timeline& timeline) {
    ForEach(job, choice, [&](uint32_t op, size_t set, size_t lane, size_t cell) {
      const Difference difference = DifferenceOf(job, analysis, op, cell);
      const std::string name = trace::OpTypeName(job.ops[op].type);
      if (difference.has_wait())
        timeline.Add(op, set, lane, name + " wait", static_cast<double>(job.starts[cell]), difference.wait);
      if (difference.has_excess())
        timeline.Add(op, set, lane, name + " excess", end_of(cell) - difference.excess, difference.excess);
    });
  });
}

}  // namespace lockstep::explain
