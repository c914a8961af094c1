// Reads and writes a straggler trace as CSV, plain or gzipped: a header with the names of the columns in any order,
// then a row per op.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler_sink.h"

namespace lockstep::trace {

// The lines of such a file, whoever reads them. Errors do not name the place, which the reader of lines knows.
class StragglerCsv {
 public:
  // kInvalidArgument: a column is missing, or is there twice; too many.
  absl::Status ReadHeader(std::string_view line);
  // Requires a header. row.optype is valid as long as the line is.
  absl::Status ReadRow(std::string_view line, RawRow& row) const;

 private:
  static constexpr size_t kMaxFields = 64;

  std::array<size_t, kMaxFields> place_{};  // of each field in kColumnNames; kColumns: none
  size_t fields_ = 0;
};

// Errors name file and line: a column that is missing, a field that is no number, a gzip file that ends too early.
absl::Status ReadStragglerCsv(const std::string& path, StragglerSink& sink);
// Gzipped if the path ends in .gz. Times have as many digits as it takes to read the same number back.
absl::Status WriteStragglerCsv(const std::string& path, const StragglerRows& rows);

}  // namespace lockstep::trace
