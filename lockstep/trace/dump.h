// A file of plain values that some tool dumped: a pickle (trace/pickle.h), or JSON.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::trace {

// Errors say where, without the path.
absl::StatusOr<Json> ReadDump(const std::string& path);

}  // namespace lockstep::trace
