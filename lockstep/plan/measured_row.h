// The fields of one row of a table of measured runs, as its columns are read (docs/formats/measured.md): what is
// missing or impossible is remembered with its column.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/csv.h"
#include "lockstep/base/status.h"

namespace lockstep::plan {

// Without blanks around it; "" also of what says that nobody knows ("unknown", "n/a", "-").
std::string KnownText(std::string_view field);

class MeasuredRow {
 public:
  MeasuredRow(const CsvTable& table, const CsvRow& row) : table_(table), row_(row) {}

  std::string Text(std::string_view column) const { return KnownText(table_.Field(row_, column)); }
  // In lower case, for columns that have a few words to choose from; "unknown" is one of them.
  std::string Word(std::string_view column) const;
  std::optional<double> Number(std::string_view column);
  // Missing: `otherwise`; below 0: it has to be there.
  int Integer(std::string_view column, int otherwise = -1);
  // No more than any job has.
  int Ranks(std::string_view column, int otherwise = -1);
  bool Flag(std::string_view column, bool otherwise);

  void Fail(std::string why) {
    if (status_.ok()) status_ = InvalidArgument("{}", why);
  }
  const absl::Status& status() const { return status_; }
  // That something is not read as it is written.
  void Assume(std::string what) { assumed_.push_back(std::move(what)); }
  // The same, chosen so that the run fits.
  void AssumeToFit(std::string what) {
    made_to_fit_ = true;
    Assume(std::move(what));
  }
  bool made_to_fit() const { return made_to_fit_; }
  const std::vector<std::string>& assumed() const { return assumed_; }

 private:
  const CsvTable& table_;
  const CsvRow& row_;
  absl::Status status_;
  std::vector<std::string> assumed_;
  bool made_to_fit_ = false;
};

}  // namespace lockstep::plan
