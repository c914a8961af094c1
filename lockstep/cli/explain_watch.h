// `lockstep explain --watch`: a report for each step that a growing trace completes.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::cli {

struct WatchOptions {
  std::string trace, meta;
  size_t window = 32;  // steps
  bool json = false;
};

// Until it is interrupted, or the trace can't be followed. Prints a line per step (JSON: the report, with `step`); on a
// terminal the newest report in place of the one before.
absl::Status WatchTrace(const WatchOptions& options);

}  // namespace lockstep::cli
