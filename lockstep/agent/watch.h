// Watches the workers of an epoch on this node through the board and /proc, and says what they look like. What that
// means for the job is control::Judge's business. Cost of a tick: one read of /proc/PID/stat and status per rank; more
// only while the coordinator wants to look closely.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/proc.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/workers.h"
#include "lockstep/base/clock.h"
#include "lockstep/control/link.h"

namespace lockstep::agent {

class Watch {
 public:
  explicit Watch(const RunSpec& spec) : spec_(spec) {}

  void BeginEpoch(uint64_t epoch, const std::vector<Worker>& workers);
  void Exited(const Worker& worker);
  bool HasExited(const Worker& worker) const;
  void LookClosely(bool closely) { closely_ = closely; }
  bool looks_closely() const { return closely_; }

  // What there is to tell at `now`: a rank that is late, halted or finished at every tick (of a job of thousands, up to
  // a second apart), one that steps twice a second once its steps are known.
  control::Samples Take(const ls_board& board, Nanos now);
  // All ranks step, none is late, and how long a step takes is known: there is nothing to hurry for.
  bool IsSteady(const ls_board& board, Nanos now) const;
  // Once all ranks of this node have begun their training loop.
  std::optional<control::LoopBegan> LoopBegins(const ls_board& board) const;
  control::Progress ProgressNow(const ls_board& board) const;
  // The last that this rank of this node has finished in this epoch; -1: none.
  int64_t StepOf(const ls_board& board, int rank) const;

  uint64_t epoch() const { return epoch_; }
  const std::vector<Worker>& workers() const { return workers_; }
  // "running", "stopped", "frozen", "traced", "finished", "exited 3", "killed by signal 9", "starting".
  std::string RankState(const ls_board& board, int rank) const;

 private:
  std::optional<detect::RankSample> Look(const ls_board& board, const Worker& worker, Nanos now) const;
  static bool IsLate(const ls_board& board, const detect::RankSample& sample, int rank, Nanos now);
  bool IsDue(const ls_board& board, const detect::RankSample& sample, int rank) const;

  const RunSpec& spec_;
  uint64_t epoch_ = 0;
  std::vector<Worker> workers_;
  std::map<int, detect::RankSample> newest_, told_;  // by rank of this node
  std::map<int, int> steps_told_;
  bool closely_ = false;
};

}  // namespace lockstep::agent
