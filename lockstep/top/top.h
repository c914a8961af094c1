// `lockstep top`: looks at a running job until the person quits. Changes nothing about the job; reading a rank's stacks
// holds that rank up for a millisecond.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/top/fold.h"

namespace lockstep::top {

struct Options {
  std::string run_dir;
  std::vector<Folding> foldings;  // beside that by node; the key g goes from one to the next
  // The run's documents as its journal has them, for when nobody watches it.
  std::function<absl::StatusOr<Json>()> status, incidents;
};

// One frame on standard output, without colours unless that is a terminal.
absl::Status PrintOnce(const Options& options);
// Until q, SIGINT or SIGTERM. FailedPrecondition when standard input or output is not a terminal.
absl::Status Watch(const Options& options);

}  // namespace lockstep::top
