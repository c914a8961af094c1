#include "lockstep/base/csv.h"

#include <algorithm>

#include "lockstep/base/file.h"

namespace lockstep {
namespace {

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  // false: the text is at its end. Empty lines are none.
  absl::StatusOr<bool> Next(CsvRow& row) {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) line_ += text_[at_++] == '\n';
    if (at_ == text_.size()) return false;
    row = {line_, {}};
    do {
      LS_ASSIGN_OR_RETURN(row.fields.emplace_back(), Field());
    } while (Take(','));
    while (Take('\r')) {
    }
    if (at_ < text_.size() && !Take('\n'))
      return InvalidArgument("{}:{}: text behind a closing quote, or behind a carriage return", path_, line_);
    ++line_;
    return true;
  }

 private:
  bool Take(char wanted) {
    const bool there = at_ < text_.size() && text_[at_] == wanted;
    at_ += there;
    return there;
  }

  absl::StatusOr<std::string> Field() {
    if (Take('"')) return Quoted();
    const size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    std::string field(text_.substr(at_, end - at_));
    at_ = end;
    return field;
  }

  absl::StatusOr<std::string> Quoted() {
    const int begin = line_;
    std::string field;
    while (at_ < text_.size()) {
      const char next = text_[at_++];
      if (next == '"' && !Take('"')) return field;
      line_ += next == '\n';
      field += next;
    }
    return InvalidArgument("{}:{}: a quote that does not end", path_, begin);
  }

  const std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::optional<size_t> CsvTable::Column(std::string_view name) const {
  const auto found = std::find(columns.begin(), columns.end(), name);
  if (found == columns.end()) return std::nullopt;
  return static_cast<size_t>(found - columns.begin());
}

std::string_view CsvTable::Field(const CsvRow& row, std::string_view column) const {
  const std::optional<size_t> index = Column(column);
  return index ? std::string_view(row.fields[*index]) : std::string_view();
}

absl::StatusOr<CsvTable> ParseCsv(std::string_view text, const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some spreadsheets begin with it
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  Reader reader(text, path);
  CsvRow header;
  LS_ASSIGN_OR_RETURN(const bool has_header, reader.Next(header));
  if (!has_header) return InvalidArgument("{}: it is empty; expected a line that names the columns", path);
  CsvTable table{std::move(header.fields), {}};
  std::vector<std::string> sorted = table.columns;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    return InvalidArgument("{}:{}: column \"{}\" twice", path, header.line, *twice);
  for (CsvRow row;;) {
    LS_ASSIGN_OR_RETURN(const bool more, reader.Next(row));
    if (!more) return table;
    if (row.fields.size() != table.columns.size()) {
      return InvalidArgument("{}:{}: {} fields, but {} columns", path, row.line, row.fields.size(),
                             table.columns.size());
    }
    table.rows.push_back(std::move(row));
  }
}

absl::StatusOr<CsvTable> ReadCsv(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseCsv(text, path);
}

}  // namespace lockstep
