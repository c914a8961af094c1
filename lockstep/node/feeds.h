// What `lockstep run --feed` is given: data sets that a service beside the job prepares.
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/base/status.h"

namespace lockstep::node {

// Each "DATA[:NAME][,KEY=VALUE...]": DATA as `lockstep feed serve --data` takes it, relative to the current directory;
// NAME, what loaders call it; KEY, an option of `feed serve`.
absl::StatusOr<std::vector<agent::FeedSpec>> ParseFeeds(const std::vector<std::string>& texts);

}  // namespace lockstep::node
