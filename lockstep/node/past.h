// The runs that lie in directories, for `lockstep report`: found, replayed, and boiled down to facts. What can't be
// read is named, never passed over.
//
//   LS_ASSIGN_OR_RETURN(const history::Past past, ReadPast({"/runs", "/archive/2026"}));
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/history/report.h"

namespace lockstep::node {

// The journal of one run, whoever watches it.
absl::StatusOr<history::Replayed> Replay(const std::string& run_dir);

// Each directory is a run's, or has some anywhere below it; a run that is named twice counts once. In the order of the
// paths. NotFound: not one run can be read. Cost: a millisecond or so for each run, on all processors.
absl::StatusOr<history::Past> ReadPast(const std::vector<std::string>& directories);

}  // namespace lockstep::node
