// Which files below a directory are the traces of which jobs.
//
// A job of the straggler schema is a pair that differs in one word: meta-X.yaml and trace-X.parquet (or .csv, .csv.gz;
// the first of these that is there). The profiler's files of one directory (trace/kineto_name.h) are one job; of those
// that torch.profiler wrote one after the other in a process, the newest counts. So are Chakra traces (*.et).
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::trace {

struct JobFiles {
  std::string id;                   // the path of the trace, or of the directory of profiler files
  std::string trace, meta;          // empty: missing
  std::vector<std::string> kineto;  // not empty: then the two above are, and the next
  std::vector<std::string> chakra;
  std::string run = {};  // directory of a run under Lockstep; not empty: then all the others are
};

// By id, each once. kNotFound: a directory that is not there, or can't be read; none of them holds a trace.
absl::StatusOr<std::vector<JobFiles>> FindJobs(const std::vector<std::string>& directories);

}  // namespace lockstep::trace
