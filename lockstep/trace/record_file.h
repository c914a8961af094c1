// Snapshots of trails in one file (docs/formats/record.md, "Snapshots"): what `lockstep record` keeps of a job, and
// `lockstep simulate telemetry` makes up.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"
#include "lockstep/trace/counter.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::trace {

// Appends, also to a file that is there. Whoever reads finds what was written before a crash, but for a torn end.
class RecordFileWriter {
 public:
  // kInvalidArgument: the file can't be opened or written, or is none of ours.
  static absl::StatusOr<RecordFileWriter> Open(const std::string& path);
  // `snapshot.ended`: since the one before of the same trail.
  absl::Status Write(const TrailSnapshot& snapshot);

 private:
  RecordFileWriter(std::string path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  Fd file_;
};

// One snapshot per process and library: as the last one says, with all that had ended. What can't be understood is
// counted. kInvalidArgument: no file of records, or there is no snapshot in it.
absl::StatusOr<std::vector<TrailSnapshot>> ReadRecordFile(const std::string& path, std::vector<Counter>& counters);

}  // namespace lockstep::trace
