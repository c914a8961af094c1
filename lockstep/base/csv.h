// A table in comma-separated values (RFC 4180): the first line names the columns; fields may be quoted, and hold
// commas, quotes and lines then. For tables of thousands of rows; lockstep/trace reads larger ones.
//
//   LS_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(path));
//   for (const CsvRow& row : table.rows) table.Field(row, "model");
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep {

struct CsvRow {
  int line = 0;  // on which it begins, from 1
  std::vector<std::string> fields;
};

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<CsvRow> rows;  // each with as many fields as there are columns

  std::optional<size_t> Column(std::string_view name) const;
  // Empty where there is no such column.
  std::string_view Field(const CsvRow& row, std::string_view column) const;
};

// kInvalidArgument, with the line: no header, a column twice, a row of another length, a quote that does not end.
// `path` is for messages.
absl::StatusOr<CsvTable> ParseCsv(std::string_view text, const std::string& path);
absl::StatusOr<CsvTable> ReadCsv(const std::string& path);

}  // namespace lockstep
