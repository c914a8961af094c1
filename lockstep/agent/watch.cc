#include "lockstep/agent/watch.h"

#include <algorithm>

namespace lockstep::agent {
namespace {

constexpr int64_t kRememberedSteps = 4;
constexpr Seconds kProgressPeriod{5.0};  // how much of the ledger a killed coordinator may have to guess

bool Finished(const ls_rank_block& block) { return Load(block.phase) == LS_PHASE_FINISHED; }

bool Held(const detect::RankSample& sample) { return sample.state == detect::ProcState::kStopped || sample.frozen; }

std::string Fingerprint(const incident::Finding& finding) {
  std::string text = incident::SyndromeName(finding.syndrome);
  for (const auto& suspect : finding.suspects) text += "/" + suspect.name;
  return text + (finding.certain ? "!" : "?");
}

}  // namespace

void Watch::BeginEpoch(uint64_t epoch, const std::vector<Worker>& workers) {
  epoch_ = epoch;
  workers_ = workers;
  newest_.clear();
  suspicions_told_.clear();
  loop_told_ = wants_stacks_ = false;
  caught_up_told_ = -1;
  detector_.Reset();
}

// The board knows how long the newest step took. The detector learns from steps that it sees, so it is shown that one
// as if there had been a few like it: better than to wait for the limit of a job without any step time.
void Watch::AdoptEpoch(uint64_t epoch, const std::vector<Worker>& workers, const ls_board& board) {
  BeginEpoch(epoch, workers);
  for (const Worker& worker : workers) {
    const ls_rank_block& block = board.rank[worker.rank];
    const Nanos end{Load(block.step_end_ns)}, duration{Load(block.step_time_ns)};
    if (Load(block.epoch) != epoch || end.value == 0 || duration.value == 0) continue;
    for (int64_t back = kRememberedSteps; back >= 0; --back) {
      detect::RankSample sample;
      sample.rank = RankId(worker.rank);
      sample.step = Load(block.step) - back;
      sample.step_end = sample.at = end - duration * back;
      sample.in_loop = true;
      detector_.Add(sample);
    }
  }
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

void Watch::Sample(const ls_board& board, Nanos now) {
  for (const Worker& worker : workers_) {
    if (worker.exited && worker.code == 0 && worker.signal == 0) {
      newest_[worker.rank].finished = true;
    } else if (worker.exited) {
      newest_.erase(worker.rank);
      continue;
    }
    detect::RankSample sample;
    sample.rank = RankId(worker.rank);
    sample.at = now;
    const ls_rank_block& block = board.rank[worker.rank];
    const bool joined = Load(block.epoch) == epoch_;
    if (joined) {
      sample.step = Load(block.step);
      sample.step_end = Nanos{Load(block.step_end_ns)};
      sample.in_loop = Load(block.loop_begin_ns) != 0 && !Finished(block);
    }
    sample.finished = worker.exited || (joined && Finished(block));
    // Counters cost more and matter only while the job stands still.
    if (!worker.exited && !(wants_stacks_ ? SampleFull(worker.pid, sample) : SampleCheap(worker.pid, sample))) continue;
    detector_.Add(sample);
    newest_[worker.rank] = sample;
  }
}

bool Watch::LoopRuns(const ls_board& board) const {
  return !workers_.empty() && std::all_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    const ls_rank_block& block = board.rank[worker.rank];
    return Load(block.epoch) == epoch_ && Load(block.loop_begin_ns) != 0;
  });
}

std::vector<control::EventBody> Watch::LoopBegins(const ls_board& board, const control::State& state) {
  if (loop_told_ || !LoopRuns(board)) return {};
  loop_told_ = true;
  Nanos begin;
  for (const Worker& worker : workers_) begin = std::max(begin, Nanos{Load(board.rank[worker.rank].loop_begin_ns)});
  return {control::LoopBegan{EpochId(epoch_), begin, state.restore}};
}

void Watch::TellProgress(const ls_board& board, const control::State& state, Nanos now,
                         std::vector<control::EventBody>& events) {
  const control::Progress progress = ProgressNow(board);
  if (progress.step_end.value == 0) return;
  if (state.open && progress.step >= state.fault.close_at_step && caught_up_told_ != progress.step) {
    caught_up_told_ = progress.step;
    events.push_back(control::CaughtUp{EpochId(epoch_), progress});
  }
  if (now - progress_told_ >= ToNanos(kProgressPeriod)) {
    progress_told_ = now;
    events.push_back(control::ProgressSeen{EpochId(epoch_), progress});
  }
}

// A job of which every process is stopped was paused by somebody: Ctrl-Z, a snapshot, a node in maintenance.
void Watch::TellPause(const control::State& state, std::vector<control::EventBody>& events) const {
  if (newest_.empty()) return;
  const bool all = std::all_of(newest_.begin(), newest_.end(),
                               [](const auto& entry) { return entry.second.finished || Held(entry.second); });
  const bool any = std::any_of(newest_.begin(), newest_.end(), [](const auto& entry) { return Held(entry.second); });
  if (all && any && !state.paused) events.push_back(control::JobPaused{});
  if (!any && state.paused) events.push_back(control::JobContinued{});
}

void Watch::TellSuspicions(const ls_board& board, Nanos now, std::vector<control::EventBody>& events) {
  const detect::Verdict verdict = detector_.At(now);
  wants_stacks_ = verdict.wants_stacks;
  for (const incident::Finding& finding : verdict.findings) {
    if (suspicions_told_.insert(Fingerprint(finding)).second) {
      events.push_back(control::Suspected{EpochId(epoch_), finding, ProgressNow(board)});
    }
  }
  if (verdict.findings.empty()) suspicions_told_.clear();  // should it come back, it is told again
}

std::vector<control::EventBody> Watch::Tick(const ls_board& board, const control::State& state, Nanos now) {
  if (workers_.empty()) return {};
  Sample(board, now);
  std::vector<control::EventBody> events = LoopBegins(board, state);
  TellProgress(board, state, now, events);
  TellPause(state, events);
  TellSuspicions(board, now, events);
  return events;
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
