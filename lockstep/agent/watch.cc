#include "lockstep/agent/watch.h"

#include <algorithm>

namespace lockstep::agent {
namespace {

constexpr Seconds kSteadyPeriod{0.5};
// Of so many ranks, one that is late is told once a second, of fewer as many times more often: that, and what is kept
// of each, is as much as a coordinator takes without effort (bench/telemetry.cc, ticks).
constexpr double kRanksPerSecond = 16'384;
constexpr double kLateSteps = 1.5;
constexpr int kFirstSteps = 10;  // of an epoch: told as they come, for the detector to learn how long one takes

bool Finished(const ls_rank_block& block) { return Load(block.phase) == LS_PHASE_FINISHED; }

Seconds LeastPeriod(int ranks) { return {std::min(ranks / kRanksPerSecond, 1.0)}; }

bool IsHaltedOrTraced(const detect::RankSample& sample) {
  return sample.state == detect::ProcState::kStopped || sample.frozen || sample.traced;
}

}  // namespace

void Watch::BeginEpoch(uint64_t epoch, const std::vector<Worker>& workers) {
  epoch_ = epoch;
  workers_ = workers;
  newest_.clear();
  told_.clear();
  steps_told_.clear();
  closely_ = false;
}

void Watch::Exited(const Worker& worker) {
  for (Worker& own : workers_) {
    if (own.pid == worker.pid) own = worker;
  }
}

bool Watch::HasExited(const Worker& worker) const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [&](const Worker& own) { return own.pid == worker.pid && own.exited; });
}

control::Progress Watch::ProgressNow(const ls_board& board) const {
  control::Progress progress;
  bool first = true;
  for (const Worker& worker : workers_) {
    const ls_rank_block& block = board.rank[worker.rank];
    if (Load(block.epoch) != epoch_ || Load(block.step_end_ns) == 0) return {};
    const int64_t step = Load(block.step);
    const Nanos end{Load(block.step_end_ns)};
    if (first || step < progress.step) {
      progress = {step, end};
    } else if (step == progress.step) {
      progress.step_end = std::max(progress.step_end, end);
    }
    first = false;
  }
  return progress;
}

int64_t Watch::StepOf(const ls_board& board, int rank) const {
  const ls_rank_block& block = board.rank[rank];
  return Load(block.epoch) == epoch_ && Load(block.step_end_ns) != 0 ? Load(block.step) : -1;
}

// None: the process is gone, and its exit will be told.
std::optional<detect::RankSample> Watch::Look(const ls_board& board, const Worker& worker, Nanos now) const {
  detect::RankSample sample;
  sample.rank = GlobalRank(spec_, worker.rank);
  sample.at = now;
  const ls_rank_block& block = board.rank[worker.rank];
  sample.joined = Load(block.epoch) == epoch_;
  if (sample.joined) {
    sample.step = Load(block.step);
    sample.step_end = Nanos{Load(block.step_end_ns)};
    sample.steps = Load(block.steps);
    sample.stepping = sample.step_end - Nanos{Load(block.loop_begin_ns)};
    sample.in_loop = Load(block.loop_begin_ns) != 0 && !Finished(block);
  }
  sample.finished = (worker.exited && worker.code == 0 && worker.signal == 0) || (sample.joined && Finished(block));
  if (worker.exited) {
    if (!sample.finished) sample.state = detect::ProcState::kGone;
    return sample;
  }
  // Counters cost more and matter only while the job stands still.
  if (!(closely_ ? SampleFull(worker.pid, sample) : SampleCheap(worker.pid, sample))) return std::nullopt;
  return sample;
}

bool Watch::IsLate(const ls_board& board, const detect::RankSample& sample, int rank, Nanos now) {
  const Nanos step_time{Load(board.rank[rank].step_time_ns)};
  return sample.step_end.value == 0 || ToSeconds(now - sample.step_end) > ToSeconds(step_time) * kLateSteps;
}

bool Watch::IsSteady(const ls_board& board, Nanos now) const {
  return !workers_.empty() && !closely_ && std::all_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    const auto sample = newest_.find(worker.rank);
    const auto steps = steps_told_.find(worker.rank);
    return !worker.exited && sample != newest_.end() && steps != steps_told_.end() && steps->second >= kFirstSteps &&
           !IsHaltedOrTraced(sample->second) && sample->second.in_loop &&
           !IsLate(board, sample->second, worker.rank, now);
  });
}

bool Watch::IsDue(const ls_board& board, const detect::RankSample& sample, int rank) const {
  const auto known = told_.find(rank);
  if (known == told_.end()) return true;
  const detect::RankSample& told = known->second;
  if (sample.state == detect::ProcState::kGone) return told.state != detect::ProcState::kGone;
  if (sample.finished != told.finished || IsHaltedOrTraced(sample) != IsHaltedOrTraced(told)) return true;
  const Seconds since = ToSeconds(sample.at - told.at);
  if (since < LeastPeriod(spec_.place.world_size)) return false;
  return closely_ || IsHaltedOrTraced(sample) || steps_told_.find(rank)->second < kFirstSteps ||
         IsLate(board, sample, rank, sample.at) || since >= kSteadyPeriod;
}

control::Samples Watch::Take(const ls_board& board, Nanos now) {
  control::Samples due{EpochId(epoch_), {}, {}, ProgressNow(board)};
  for (const Worker& worker : workers_) {
    const std::optional<detect::RankSample> sample = Look(board, worker, now);
    if (!sample) continue;
    newest_[worker.rank] = *sample;
    if (!IsDue(board, *sample, worker.rank)) continue;
    steps_told_[worker.rank] += told_[worker.rank].step != sample->step ? 1 : 0;
    told_[worker.rank] = *sample;
    due.ranks.push_back(*sample);
  }
  return due;
}

std::optional<control::LoopBegan> Watch::LoopBegins(const ls_board& board) const {
  if (workers_.empty()) return std::nullopt;
  control::LoopBegan began{EpochId(epoch_), {}, {}};
  for (const Worker& worker : workers_) {
    const ls_rank_block& block = board.rank[worker.rank];
    const Nanos begin{Load(block.loop_begin_ns)};
    if (Load(block.epoch) != epoch_ || begin.value == 0) return std::nullopt;
    began.begin = std::max(began.begin, begin);
  }
  if (board.restore_epoch != 0)
    began.restored = control::CheckpointId{EpochId(board.restore_epoch), board.restore_step};
  return began;
}

std::string Watch::RankState(const ls_board& board, int rank) const {
  const auto worker =
      std::find_if(workers_.begin(), workers_.end(), [&](const Worker& own) { return own.rank == rank; });
  if (worker == workers_.end()) return "starting";
  if (worker->signal != 0) return fmt::format("killed by signal {}", worker->signal);
  if (worker->exited) return worker->code == 0 ? "finished" : fmt::format("exited {}", worker->code);
  if (const auto sample = newest_.find(rank); sample != newest_.end()) {
    if (sample->second.frozen) return "frozen";
    if (sample->second.traced) return "traced";
    if (sample->second.state == detect::ProcState::kStopped) return "stopped";
  }
  const ls_rank_block& block = board.rank[rank];
  if (Load(block.epoch) != epoch_) return "starting";
  if (Finished(block)) return "finished";
  return Load(block.loop_begin_ns) != 0 ? "running" : "starting";
}

}  // namespace lockstep::agent
