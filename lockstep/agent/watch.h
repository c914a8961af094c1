// Watches the workers of an epoch through the board and /proc, and says what the control plane should hear: the loop
// began, lost steps are caught up, progress, suspicions, pause and continuation. Cost of a tick: one read of
// /proc/PID/stat and status per rank; more only while the job stands still.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/proc.h"
#include "lockstep/agent/workers.h"
#include "lockstep/base/clock.h"
#include "lockstep/control/machine.h"
#include "lockstep/detect/hang.h"

namespace lockstep::agent {

class Watch {
 public:
  Watch(const detect::Policy& policy, int world_size) : detector_(policy, world_size) {}

  void BeginEpoch(uint64_t epoch, const std::vector<Worker>& workers);
  // The workers of an epoch that ran on while nobody watched: what the board remembers of their steps is taken in.
  void AdoptEpoch(uint64_t epoch, const std::vector<Worker>& workers, const ls_board& board);
  // Nobody watched for a while: what was seen before says nothing about now.
  void LookAfresh() { detector_.Reset(); }
  void Exited(const Worker& worker);
  bool HasExited(const Worker& worker) const;
  // What there is to tell at `now`.
  std::vector<control::EventBody> Tick(const ls_board& board, const control::State& state, Nanos now);
  // The part of Tick that says that the training loop began.
  std::vector<control::EventBody> LoopBegins(const ls_board& board, const control::State& state);
  void Add(const detect::StackSample& sample) { detector_.Add(sample); }
  bool wants_stacks() const { return wants_stacks_; }

  control::Progress ProgressNow(const ls_board& board) const;
  uint64_t epoch() const { return epoch_; }
  const std::vector<Worker>& workers() const { return workers_; }
  // "running", "stopped", "frozen", "traced", "finished", "exited 3", "killed by signal 9", "starting".
  std::string RankState(const ls_board& board, int rank) const;

 private:
  void Sample(const ls_board& board, Nanos now);
  bool LoopRuns(const ls_board& board) const;
  void TellProgress(const ls_board& board, const control::State& state, Nanos now,
                    std::vector<control::EventBody>& events);
  void TellPause(const control::State& state, std::vector<control::EventBody>& events) const;
  void TellSuspicions(const ls_board& board, Nanos now, std::vector<control::EventBody>& events);

  detect::HangDetector detector_;
  uint64_t epoch_ = 0;
  std::vector<Worker> workers_;
  std::map<int, detect::RankSample> newest_;
  bool loop_told_ = false, wants_stacks_ = false;
  int64_t caught_up_told_ = -1;
  Nanos progress_told_;
  std::set<std::string> suspicions_told_;
};

}  // namespace lockstep::agent
