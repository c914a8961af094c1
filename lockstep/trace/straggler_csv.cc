#include "lockstep/trace/straggler_csv.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/trace/decimal.h"
#include "lockstep/trace/line_reader.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::trace {
namespace {

// Up to the next comma, or quote.
std::string_view FieldAt(const char* at, const char* end, char behind = ',') {
  const void* found = std::memchr(at, behind, static_cast<size_t>(end - at));
  return {at, static_cast<size_t>((found == nullptr ? end : static_cast<const char*>(found)) - at)};
}

// Behind the quote that opens a field, and what ends that field. Some writers quote all texts, or all fields.
char SkipQuote(const char*& at, const char* end) {
  if (at == end || *at != '"') return ',';
  ++at;
  return '"';
}
// Behind the quote that closes it.
bool CloseQuote(const char*& at, const char* end, char behind) {
  if (behind == ',') return true;
  if (at == end || *at != behind) return false;
  ++at;
  return true;
}

// 3, or 3.0, as tables write whole numbers where one is missing.
bool Read(const char*& at, const char* end, int64_t& value) {
  const char* const begin = std::exchange(at, ReadInteger(at, end, value));
  if (at == begin || at == end || *at != '.') return at != begin;
  while (++at != end && *at == '0') {
  }
  return true;
}
bool Read(const char*& at, const char* end, float& value) {
  const char* const begin = std::exchange(at, ReadFloat(at, end, value));
  return at != begin;
}

// Behind the field, if it is what the column wants.
bool ReadField(size_t place, const char*& at, const char* end, char behind, RawRow& row) {
  switch (static_cast<Column>(place)) {
    case Column::kDpRank:
      return Read(at, end, row.dp_rank);
    case Column::kStage:
      return Read(at, end, row.stage);
    case Column::kRank:
      return Read(at, end, row.rank);
    case Column::kStep:
      return Read(at, end, row.step);
    case Column::kStartTs:
      return Read(at, end, row.start_ts);
    case Column::kDuration:
      return Read(at, end, row.duration);
    case Column::kSeqId:
      return Read(at, end, row.seq_id);
    case Column::kMc:
      return Read(at, end, row.mc);
    case Column::kMbId:
      return Read(at, end, row.mb_id);
    case Column::kGmc:
      return Read(at, end, row.gmc);
    case Column::kOptype:
      row.optype = FieldAt(at, end, behind);
      at += row.optype.size();
      return true;
  }
  at += FieldAt(at, end, behind).size();  // a column of no interest
  return true;
}

absl::Status NotRead(size_t place, std::string_view field) {
  if (place == kColumns || static_cast<Column>(place) == Column::kOptype)
    return InvalidArgument("a quote that does not end a field, around {}", field);
  int64_t whole = 0;
  float number = 0;
  const char *at = field.data(), *const end = at + field.size();
  const char* const behind = ReadFloat(at, end, number);
  const bool is_number = behind == end && behind != at && ReadInteger(at, end, whole) != end;
  return InvalidArgument("{} is \"{}\", expected a {}", kColumnNames[place], field,
                         is_number ? "whole number" : "number");
}

}  // namespace

absl::Status StragglerCsv::ReadHeader(std::string_view line) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // of UTF-8, as spreadsheets write it
  if (line.starts_with(kMark)) line.remove_prefix(kMark.size());
  std::array<bool, kColumns> found{};
  const char *at = line.data(), *end = at + line.size();
  for (fields_ = 0; fields_ < kMaxFields; ++fields_) {
    const char behind = SkipQuote(at, end);
    const std::string_view name = FieldAt(at, end, behind);
    const auto* const column = std::find(kColumnNames.begin(), kColumnNames.end(), name);
    place_[fields_] = static_cast<size_t>(column - kColumnNames.begin());
    if (column != kColumnNames.end() && std::exchange(found[place_[fields_]], true))
      return InvalidArgument("the header has the column {} twice", name);
    at = name.data() + name.size();
    CloseQuote(at, end, behind);
    if (at++ == end) break;
  }
  if (++fields_ > kMaxFields) return InvalidArgument("more than {} columns", kMaxFields);
  for (size_t column = 0; column < kColumns; ++column)
    if (!found[column])
      return InvalidArgument("the header has no column {}; expected {}", kColumnNames[column],
                             fmt::join(kColumnNames, ","));
  return absl::OkStatus();
}

absl::Status StragglerCsv::ReadRow(std::string_view line, RawRow& row) const {
  const char *at = line.data(), *const end = at + line.size();
  for (size_t field = 0; field < fields_; ++field) {
    const char behind = SkipQuote(at, end);
    const char* const begin = at;
    if (!ReadField(place_[field], at, end, behind, row) || !CloseQuote(at, end, behind) || (at != end && *at != ','))
      return NotRead(place_[field], FieldAt(begin, end, behind));
    if ((at == end) != (field + 1 == fields_))
      return InvalidArgument("{} fields, expected {} as in the header", std::count(line.begin(), line.end(), ',') + 1,
                             fields_);
    ++at;
  }
  return absl::OkStatus();
}

absl::Status ReadStragglerCsv(const std::string& path, StragglerSink& sink) {
  LS_ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
  StragglerCsv csv;
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
  if (!has_header) return InvalidArgument("{} is empty; expected a header with {}", path, fmt::join(kColumnNames, ","));
  return absl::OkStatus();
}

absl::Status WriteStragglerCsv(const std::string& path, const StragglerRows& rows) {
  LS_ASSIGN_OR_RETURN(TextWriter writer, TextWriter::Create(path));
  writer.Write("{}\n", fmt::join(kColumnNames, ","));
  for (const auto& piece : rows.pieces)
    for (const StragglerRow& row : piece)
      writer.Write("{},{},{},{},{},{},{},{},{},{},{}\n", row.dp, row.stage, rows.ranks[row.dp][row.stage],
                   rows.steps[row.step], OpTypeName(row.type), row.start, row.duration, row.sequence, int{row.chunk},
                   row.microbatch, row.global_chunk);
  return writer.Finish();
}

}  // namespace lockstep::trace
