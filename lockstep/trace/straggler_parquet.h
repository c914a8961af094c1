// Reads a straggler trace from Parquet, through DuckDB's C library.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler_sink.h"

namespace lockstep::trace {

// Errors name the file, and the row (from 1) or the column: one that is missing or has another type, a null.
// kUnavailable: no library.
absl::Status ReadStragglerParquet(const std::string& path, StragglerSink& sink, size_t threads = 1);

}  // namespace lockstep::trace
