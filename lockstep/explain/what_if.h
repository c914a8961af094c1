// The what-if analysis of a job: what its steps would have taken had parts of it been ideal (OSDI'25, arXiv
// 2505.05713).
//
//   ideal duration of an op: over its class (op type), the mean for compute, the median of the transfers for
//                            communication; waits for data are taken out
//   T_nodelay = replay with measured durations, without launch delays
//   T_ideal   = replay with ideal durations
//   S         = mean over steps of T_nodelay / mean of T_ideal         (Eq. 1)
//   S_x       = mean of T(ideal, but x as measured) / mean of T_ideal  (Eq. 2, 4)
//               x: an op type, a stage, a data-parallel rank, or, exactly, one worker
//   rem(X)    = (T_nodelay - T(measured, but X ideal)) / (T_nodelay - T_ideal)   (Eq. 5)
//               the share of the loss that X explains
//
// docs/models/explain.md has the rules by which the graph is made. Cost: one replay for each x.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/replay.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::explain {

// Along which dimension a loss is taken apart.
enum class By : uint8_t { kKind, kDp, kStage };
inline constexpr size_t kDimensions = 3;

// What x costs, for each x of a kind of x: a stage, a rank, an op type.
struct Split {
  std::vector<std::string> names;
  std::vector<double> total;                  // S_x
  std::vector<std::vector<double>> per_step;  // [step][x]
};

// How much of the loss goes with X. s are means over the steps.
struct Removal {
  double removed_s = 0;  // T with X ideal
  double added_s = 0;    // T_ideal with X as measured
  double rem = 0, add = 0;
};

// Of the critical path of all steps, as measured with the delays at their begins: seconds per step, by what it was
// spent on. The sum over kinds and `late_starts` is the replayed step, and so is that over workers.
struct PathCost {
  std::vector<double> by_kind;                 // [kind]
  double late_starts = 0;                      // before the first op of a step
  std::vector<std::vector<double>> by_worker;  // [dp][stage]
};

class WhatIf {
 public:
  // `job` must outlive this. Scenarios of a large job are replayed on so many threads; the answers are the same bytes
  // for any number.
  explicit WhatIf(const trace::TracedJob& job, int threads = 1);

  size_t threads() const { return threads_; }
  size_t ThreadsFor(size_t replays) const;  // as many as are worth it
  const std::vector<int64_t>& steps() const { return job_.steps; }
  // The global rank that stands for a worker; -1: the trace has no rows of it.
  using Worker = std::pair<int, int>;  // dp, stage
  struct WorkerCost {
    Worker worker;
    int32_t rank;
    double slowdown;
  };
  int32_t RankOf(const Worker& worker) const {
    return job_.ranks[static_cast<size_t>(worker.first)][static_cast<size_t>(worker.second)];
  }

  // Seconds, per step.
  const std::vector<double>& measured() const { return measured_; }  // T_base, as recorded
  const std::vector<double>& nodelay() const { return nodelay_; }
  const std::vector<double>& ideal() const { return ideal_; }
  double nodelay_mean() const { return nodelay_mean_; }
  double ideal_mean() const { return ideal_mean_; }
  double slowdown() const { return nodelay_mean_ / ideal_mean_; }
  double launch_slowdown() const;  // T_base / T_nodelay: 1 if the replay tells all of the truth

  // S_x; replayed at the first call.
  const Split& Blocking(By dimension) const;
  // The same for launch delays: T_nodelay with the delays of x, over T_nodelay. Kinds have "first-op" apart, the first
  // op of each stage.
  const Split& Launch(By dimension) const;

  // Workers of which the trace has rows, by what `slowdown` says of each, the costliest first, of equal ones the lower
  // rank.
  std::vector<WorkerCost> Ranked(const std::function<double(const Worker&)>& slowdown) const;
  std::vector<WorkerCost> ByWorker() const;  // ranked by S_w, exact

  Removal RemoveWorkers(const std::vector<Worker>& workers) const;
  Removal RemoveCostliest(const std::vector<WorkerCost>& ranked) const;  // the first 3 %: its rem is M_W
  Removal RemoveStage(int stage) const;

  // As measured, with the delays at the begin of a step (late_starts.h). Others are left out: they hold waiting that
  // the graph has no edge for, which goes when its reason goes.
  graph::Scenario WithLateStarts() const;
  PathCost CriticalPath() const;

  // The ideal duration of each op of the graph, in seconds.
  std::span<const double> ideal_durations() const { return ideal_durations_; }
  std::vector<double> IdealEnds() const;  // [cell], s since the begin of the step, when every op is ideal

 private:
  using Times = std::vector<double>;

  Times Run(const graph::Scenario& scenario) const;
  // The times of each, in their order. They have much in common with `base`.
  std::vector<Times> RunEach(const graph::Scenario& base, const std::vector<graph::Scenario>& scenarios) const;
  // [i * dp + rank]: the times with what `of_ops[i]` picks of that data-parallel rank as measured, all else ideal.
  std::vector<Times> RunLanes(const std::vector<graph::Selection>& of_ops) const;
  graph::Selection None() const;
  graph::Selection All() const;
  using OpFilter = std::function<bool(uint32_t op)>;
  graph::Selection Ops(const OpFilter& filter) const;
  graph::Selection Lanes(int dp, const graph::Selection& of_ops) const;
  graph::Selection Workers(const std::vector<Worker>& workers, bool inside) const;

  // x of a split.
  struct Part {
    std::string name;
    graph::Selection picked;
  };
  std::vector<Part> Kinds(bool first_op_apart) const;
  std::vector<Part> Dps() const;
  Split BlockingByDp() const;
  std::vector<Part> Stages() const;
  std::vector<Part> PartsOf(By dimension, bool first_op_apart) const;
  Split Compare(const std::vector<Part>& parts, bool delays, const Times& base) const;
  static Split Against(const Times& base, std::vector<std::string> names, const std::vector<Times>& times);
  Removal Remove(graph::Selection inside, graph::Selection outside) const;

  const trace::TracedJob& job_;
  const std::vector<double> ideal_durations_;
  const graph::Replay replay_;
  const size_t threads_;
  // Not to be shared: one WhatIf per thread.
  mutable std::vector<graph::Replay::Scratch> scratches_;
  mutable std::array<std::optional<Split>, kDimensions> blocking_, launch_;
  Times measured_, nodelay_, ideal_;
  double nodelay_mean_ = 0, ideal_mean_ = 0;
};

}  // namespace lockstep::explain
