// What `lockstep run --feed` is given: data sets that a service beside the job prepares.
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/base/status.h"

namespace lockstep::node {

// What a data set is called that nobody gave a name: the last part of a path; of a URL, or of several files, what
// stands there before the first dot or brace. Of feed:// "": as many sets as machines would be called after those.
std::string NameOfData(const std::string& data);

// Each "DATA[:NAME][,KEY=VALUE...]": DATA as `lockstep feed serve --data` takes it, relative to the current directory;
// NAME, what loaders call it; KEY, an option of `feed serve`.
absl::StatusOr<std::vector<agent::FeedSpec>> ParseFeeds(const std::vector<std::string>& texts);

}  // namespace lockstep::node
