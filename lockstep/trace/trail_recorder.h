// Keeps what the trails of a directory say in a file of records (record_file.h), before they overwrite it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/trace/record_file.h"

namespace lockstep::trace {

// Whether a snapshot is worth its place though nothing in it is new since `told`: how long an op has been under way is
// what tells a hang, and how long a rank that runs has done nothing is told by when it was last looked at.
bool IsToBeToldAgain(const TrailSnapshot& snapshot, Nanos told);

class TrailRecorder {
 public:
  // `directory`: of trails, or of a run.
  TrailRecorder(std::string directory, RecordFileWriter file)
      : directory_(std::move(directory)), file_(std::move(file)) {}

  // Writes what is new; `all`: also where nothing is. Errors: the file can't be written.
  absl::Status Look(bool all = false);

  size_t trails() const { return followed_.size(); }
  size_t alive() const { return alive_; }  // whose processes ran at the last look
  uint64_t kept() const { return kept_; }
  uint64_t overwritten() const { return overwritten_; }                 // records that no look came in time for
  const std::vector<std::string>& damaged() const { return damaged_; }  // trails that can't be read, at the last look

 private:
  struct Followed {
    uint64_t at = 0;  // position of the first record that is not kept
    size_t under_way = 0;
    bool alive = false, stopped = false;
    Nanos told;
  };

  std::string directory_;
  RecordFileWriter file_;
  std::map<std::string, Followed> followed_;  // by path
  size_t alive_ = 0;
  uint64_t kept_ = 0, overwritten_ = 0;
  std::vector<std::string> damaged_;
};

}  // namespace lockstep::trace
