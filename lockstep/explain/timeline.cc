#include "lockstep/explain/timeline.h"

#include <algorithm>

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

// When each step begins in a timeline where the steps take so long, us.
std::vector<double> Begins(const std::vector<double>& step_times) {
  std::vector<double> begins;
  double at = 0;
  for (const double seconds : step_times) {
    begins.push_back(at);
    at += kStepsApart * kMicro * seconds;
  }
  return begins;
}

class Timeline {
 public:
  Timeline(const trace::TracedJob& job, std::vector<double> begins, trace::TimelineWriter& writer)
      : job_(job), begins_(std::move(begins)), writer_(writer) {
    for (int dp = 0; dp < job.dp; ++dp) {
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

// Calls what(op, set, lane, cell) for every op that is there, lane by lane.
template <typename What>
void ForEach(const trace::TracedJob& job, const What& what) {
  for (size_t set = 0; set < job.graph.lane_sets(); ++set)
    for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane)
      for (uint32_t op = 0; op < job.graph.ops(); ++op)
        if (const size_t cell = job.graph.Cell(op, lane); !job.graph.IsAbsent(cell)) what(op, set, lane, cell);
}

}  // namespace

absl::Status WriteTimelines(const std::string& directory, const trace::TracedJob& job, const WhatIf& analysis) {
  const auto write = [&](const char* kind, const std::vector<double>& step_times, const auto& fill) {
    auto writer = trace::TimelineWriter::Create(fmt::format("{}/timeline-{}.json.gz", directory, kind));
    if (!writer.ok()) return writer.status();
    Timeline timeline(job, Begins(step_times), *writer);
    fill(timeline);
    return writer->Finish();
  };
  const auto end_of = [&](size_t cell) { return static_cast<double>(job.starts[cell] + job.durations[cell]); };
  LS_RETURN_IF_ERROR(write("original", analysis.measured(), [&](Timeline& timeline) {
    ForEach(job, [&](uint32_t op, size_t set, size_t lane, size_t cell) {
      const double transfer = static_cast<double>(job.transfers[cell]);
      timeline.Add(op, set, lane, trace::OpTypeName(job.ops[op].type), end_of(cell) - transfer, transfer);
    });
  }));
  const std::vector<double> ends = analysis.IdealEnds();
  LS_RETURN_IF_ERROR(write("ideal", analysis.ideal(), [&](Timeline& timeline) {
    ForEach(job, [&](uint32_t op, size_t set, size_t lane, size_t cell) {
      const double ideal = analysis.ideal_durations()[op];
      timeline.Add(op, set, lane, trace::OpTypeName(job.ops[op].type), ends[cell] - ideal, ideal);
    });
  }));
  return write("difference", analysis.measured(), [&](Timeline& timeline) {
    ForEach(job, [&](uint32_t op, size_t set, size_t lane, size_t cell) {
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
