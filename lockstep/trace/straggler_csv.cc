#include "lockstep/trace/straggler_csv.h"

#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "lockstep/trace/line_reader.h"

namespace lockstep::trace {
namespace {

enum Column { kDpRank, kStage, kRank, kStep, kOptype, kStartTs, kDuration, kSeqId, kMc, kMbId, kGmc, kColumns };
constexpr std::array<std::string_view, kColumns> kNames = {"dp_rank",  "stage",  "rank", "step",  "optype", "start_ts",
                                                           "duration", "seq_id", "mc",   "mb_id", "gmc"};
constexpr size_t kMaxFields = 64;

// Cuts a line at commas; the schema has no quotes. Returns how many fields there are, of which the first kMaxFields are
// kept.
size_t Split(std::string_view line, std::array<std::string_view, kMaxFields>& fields) {
  size_t count = 0;
  for (size_t begin = 0;; ++count) {
    const size_t comma = line.find(',', begin);
    if (count < kMaxFields) fields[count] = line.substr(begin, comma - begin);
    if (comma == std::string_view::npos) return count + 1;
    begin = comma + 1;
  }
}

template <typename Number>
absl::Status Parse(Column column, std::string_view text, Number& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && rest == text.data() + text.size()) return absl::OkStatus();
  return InvalidArgument("{} is \"{}\", expected a number", kNames[column], text);
}

class Csv {
 public:
  absl::Status ReadHeader(std::string_view line) {
    if (line.starts_with("PAR1")) return InvalidArgument("this is Parquet, which is not read yet: write it as CSV");
    place_.fill(kMaxFields);
    fields_ = Split(line, field_);
    if (fields_ > kMaxFields) return InvalidArgument("{} columns, expected at most {}", fields_, kMaxFields);
    for (size_t i = 0; i < fields_; ++i)
      for (size_t column = 0; column < kColumns; ++column)
        if (field_[i] == kNames[column]) place_[column] = i;
    for (size_t column = 0; column < kColumns; ++column)
      if (place_[column] == kMaxFields)
        return InvalidArgument("the header has no column {}; expected {}", kNames[column], fmt::join(kNames, ","));
    return absl::OkStatus();
  }

  absl::Status ReadRow(std::string_view line, RawRow& row) {
    if (const size_t count = Split(line, field_); count != fields_)
      return InvalidArgument("{} fields, expected {} as in the header", count, fields_);
    row.optype = Field(kOptype);
    LS_RETURN_IF_ERROR(Parse(kStartTs, Field(kStartTs), row.start_ts));
    LS_RETURN_IF_ERROR(Parse(kDuration, Field(kDuration), row.duration));
    for (const auto& [column, value] : {std::pair(kDpRank, &row.dp_rank),
                                        {kStage, &row.stage},
                                        {kRank, &row.rank},
                                        {kStep, &row.step},
                                        {kSeqId, &row.seq_id},
                                        {kMc, &row.mc},
                                        {kMbId, &row.mb_id},
                                        {kGmc, &row.gmc}})
      LS_RETURN_IF_ERROR(Parse(column, Field(column), *value));
    return absl::OkStatus();
  }

 private:
  std::string_view Field(Column column) const { return field_[place_[column]]; }

  std::array<size_t, kColumns> place_{};
  std::array<std::string_view, kMaxFields> field_;
  size_t fields_ = 0;
};

}  // namespace

absl::Status ReadStragglerCsv(const std::string& path, StragglerSink& sink) {
  LS_ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
  Csv csv;
  RawRow row;
  bool has_header = false;
  while (lines.Next()) {
    absl::Status status = absl::OkStatus();
    if (!std::exchange(has_header, true)) {
      status = csv.ReadHeader(lines.line());
    } else if (!lines.line().empty()) {
      status = csv.ReadRow(lines.line(), row);
      if (status.ok()) status = sink.Add(row);
    }
    if (!status.ok()) return InvalidArgument("{}:{}: {}", path, lines.number(), Message(status));
  }
  LS_RETURN_IF_ERROR(lines.status());
  if (!has_header) return InvalidArgument("{} is empty; expected a header with {}", path, fmt::join(kNames, ","));
  return absl::OkStatus();
}

}  // namespace lockstep::trace
