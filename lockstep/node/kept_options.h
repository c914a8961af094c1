// What whoever watches a run was asked for, and neither its journal nor the rest of its run.json knows: when to call a
// hang one, where to tell of it, whom to ask for machines. Kept in run.json, so that `--resume` goes on with it. A
// webhook's URL may hold a secret: it is kept as safe as the run directory.
//
//   spec.watching = KeptOptions(options);
//   LS_RETURN_IF_ERROR(TakeKept(spec.watching, [&](const std::string& flag) { return run.count(flag) > 0; }, options));
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/node/options.h"

namespace lockstep::node {

// A JSON object. Paths in it are absolute.
std::string KeptOptions(const RunOptions& options);
// All of them into `options`, but those the flag of which is `given` anew. What `kept` does not have, for another
// version wrote it, stays as it is.
absl::Status TakeKept(const std::string& kept, const std::function<bool(const std::string& flag)>& given,
                      RunOptions& options);
// The flags that a resume follows.
std::vector<std::string> KeptFlags();

}  // namespace lockstep::node
