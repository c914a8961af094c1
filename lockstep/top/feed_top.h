// `lockstep feed top`: looks at a data service until the person quits.
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::top {

struct FeedOptions {
  std::string socket;                            // of the service
  std::function<absl::StatusOr<Json>()> status;  // what it says there, waited for; an error: it does not answer
};

// One frame on standard output, without colours unless that is a terminal.
absl::Status PrintFeedOnce(const FeedOptions& options);
// Until q, SIGINT or SIGTERM; a service that goes away is waited for. Error: it does not answer in the first place.
// Requires a terminal on standard input and output.
absl::Status WatchFeed(const FeedOptions& options);

}  // namespace lockstep::top
