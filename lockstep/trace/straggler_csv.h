// Reads and writes a straggler trace as CSV, plain or gzipped: a header with the names of the columns in any order,
// then a row per op.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler_sink.h"

namespace lockstep::trace {

// Errors name file and line: a column that is missing, a field that is no number, a gzip file that ends too early.
absl::Status ReadStragglerCsv(const std::string& path, StragglerSink& sink);
// Gzipped if the path ends in .gz. Times have as many digits as it takes to read the same number back.
absl::Status WriteStragglerCsv(const std::string& path, const StragglerRows& rows);

}  // namespace lockstep::trace
