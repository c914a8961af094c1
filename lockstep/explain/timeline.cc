#include "lockstep/explain/timeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

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

// Of so many the costliest half, and those nearest to the median.
std::vector<size_t> Chosen(const std::vector<double>& costs, size_t count) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (count >= order.size()) return order;
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t at) { return costs[at]; });
  const auto others = order.begin() + static_cast<std::ptrdiff_t>((count + 1) / 2);
  const double median = costs[order[order.size() / 2]];
  std::stable_sort(others, order.end(), [&](size_t one, size_t other) {
    return std::abs(costs[one] - median) < std::abs(costs[other] - median);
  });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

size_t SlicesOf(const trace::TracedJob& job) {
  size_t slices = 0;
  for (size_t lane = 0; lane < job.lanes.size(); ++lane)
    for (uint32_t op = 0; op < job.graph.ops(); ++op) slices += job.graph.IsAbsent(job.graph.Cell(op, lane)) ? 0 : 1;
  return slices;
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
  constexpr size_t kFewest = 2;  // the costliest, and one to compare it with
  const size_t slices = SlicesOf(job), steps = job.graph.lane_sets(), dps = static_cast<size_t>(job.dp);
  // Of so many things that have so many slices in all.
  const auto fitting = [&](size_t of, size_t slices_of) {
    return slices_of <= most ? of : std::clamp(of * most / slices_of, std::min(kFewest, of), of);
  };
  TimelineChoice choice;
  choice.steps = Chosen(analysis.measured(), fitting(steps, slices));
  choice.dps = Chosen(analysis.Blocking(By::kDp).total, fitting(dps, slices * choice.steps.size() / steps));
  std::vector<int64_t> numbers;
  for (const size_t step : choice.steps) numbers.push_back(job.steps[step]);
  const std::string of_steps = SomeText(numbers, steps, "steps");
  const std::string of_dps = SomeText({choice.dps.begin(), choice.dps.end()}, dps, "data-parallel ranks");
  if (!of_steps.empty() || !of_dps.empty())
    choice.left_out = fmt::format(
        "timelines have {}{}{} only, the slowest and those nearest to the median, for a browser to hold them: all "
        "would be {} slices; --steps chooses other steps, --whole-timelines writes all",
        of_steps, of_steps.empty() || of_dps.empty() ? "" : " and ", of_dps, slices);
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
      const double transfer = static_cast<double>(job.transfers[cell]);
      const double wait = static_cast<double>(job.durations[cell]) - transfer;
      const double excess = transfer - analysis.ideal_durations()[op];
      const std::string name = trace::OpTypeName(job.ops[op].type);
      if (kMicro * wait >= kWorthASlice)
        timeline.Add(op, set, lane, name + " wait", static_cast<double>(job.starts[cell]), wait);
      if (kMicro * excess >= kWorthASlice) timeline.Add(op, set, lane, name + " excess", end_of(cell) - excess, excess);
    });
  });
}

}  // namespace lockstep::explain
