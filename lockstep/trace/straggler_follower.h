// Follows a CSV of the straggler schema that is still being written, step by step.
//
// A step is complete when every worker of the job has gone on to a later one, or when eight later ones have begun: a
// worker that fell silent holds nobody up for ever. At the end of what is there, so that the last step is not waited
// for in vain, it is complete with as many rows as the step before. Rows that come for one of the last 1,000 steps
// after that are counted (late_rows). Memory: the rows of the window and of the steps that are not complete.
//
//   LS_ASSIGN_OR_RETURN(auto follower, StragglerFollower::Open(path, meta, 32));
//   while (true) {
//     LS_ASSIGN_OR_RETURN(const bool completed, follower.Advance());
//     completed ? Use(follower.step(), follower.Window()) : WaitAWhile();
//   }
#pragma once

#include <cstdint>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

class StragglerFollower {
 public:
  // kInvalidArgument: the file is no plain text. `window`: how many complete steps to keep, at least 1.
  static absl::StatusOr<StragglerFollower> Open(const std::string& path, const StragglerMeta& meta, size_t window);

  // True: one more step is complete. False: the file holds no more for now. Errors name file and line; kDataLoss: the
  // file became shorter, or another one has its path.
  absl::StatusOr<bool> Advance();
  int64_t step() const { return complete_.back().number; }  // the newest that is complete; requires one
  // The complete steps of the window as a job.
  absl::StatusOr<TracedJob> Window() const;

 private:
  struct OpenStep {
    int64_t number;
    uint64_t place;  // how many steps began before it
    StragglerSink sink;
    uint64_t lines = 0;
  };
  struct CompleteStep {
    int64_t number;
    StragglerRows rows;
    std::vector<Counter> counters;
    uint64_t lines;
  };
  using Worker = std::pair<int64_t, int64_t>;          // dp, stage
  using FileIdentity = std::pair<uint64_t, uint64_t>;  // device, inode

  StragglerFollower(std::string path, const StragglerMeta& meta, size_t window)
      : path_(std::move(path)), meta_(std::make_shared<const StragglerMeta>(meta)), window_(window) {}
  absl::StatusOr<bool> NextLine();
  absl::Status CheckPath() const;
  absl::Status Take(std::string_view line);
  bool IsComplete(const OpenStep& step) const;
  bool IsAsLongAsTheLast(const OpenStep& step) const {
    return !complete_.empty() && step.lines == complete_.back().lines;
  }
  void Complete();

  std::string path_;
  std::shared_ptr<const StragglerMeta> meta_;  // sinks refer to it
  size_t window_;
  std::ifstream file_;
  FileIdentity identity_{};
  std::string line_;  // what there is of the next one
  uint64_t lines_ = 0, bytes_ = 0;
  StragglerCsv csv_;
  std::deque<OpenStep> open_;  // in the order in which they began
  std::deque<CompleteStep> complete_;
  std::deque<int64_t> completed_;      // the newest, those too that have left the window
  std::map<Worker, uint64_t> newest_;  // place of the newest step in which a worker has a row
  uint64_t begun_ = 0, late_rows_ = 0;
};

}  // namespace lockstep::trace
