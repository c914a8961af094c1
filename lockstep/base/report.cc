#include "lockstep/base/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/base/clean.h"
#include "lockstep/base/number.h"
#include "lockstep/base/ranges.h"

namespace lockstep {
namespace {

// What is small has three digits, what is left of a difference of equals none.
std::string NumberText(double value) {
  constexpr double kSmall = 1e-3, kRest = 1e-12;
  if (!std::isfinite(value)) return "-";
  if (std::abs(value) < kRest) return "0";
  if (std::abs(value) < kSmall) return fmt::format("{:.3g}", value);
  std::string text = fmt::format("{:.4f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

bool IsListOf(const Json& value, bool (*fits)(const Json&)) {
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), fits);
}

// As an int64_t holds it.
bool IsWhole(const Json& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= kMost);
}

std::string CellText(const Json& value);

std::string JoinedText(const Json& values) {
  if (IsListOf(values, IsWhole)) return RangesText(values.get<std::vector<int64_t>>());
  std::string text;
  for (const auto& [key, value] : values.items()) {
    if (!text.empty()) text += ", ";
    if (values.is_object()) text += Clean(key) + " ";
    text += CellText(value);
  }
  return text.empty() ? "-" : text;
}

std::string CellText(const Json& value) {
  if (value.is_string()) return Clean(value.get_ref<const std::string&>());
  if (value.is_number_float()) return NumberText(value.get<double>());
  if (value.is_null()) return "-";
  if (value.is_structured()) return JoinedText(value);
  return value.dump();
}

bool IsFlat(const Json& object) {
  return object.is_object() &&
         std::none_of(object.begin(), object.end(), [](const Json& value) { return value.is_structured(); });
}

bool IsTable(const Json& value) { return IsListOf(value, IsFlat); }
bool IsBlocks(const Json& value) {
  return !IsTable(value) && IsListOf(value, [](const Json& item) { return item.is_object(); });
}
bool IsLines(const Json& value) {
  return IsListOf(value, [](const Json& item) { return item.is_string(); }) && value.size() > 1;
}

using Row = std::vector<std::string>;

std::string Aligned(const std::vector<Row>& rows, const std::string& indent) {
  std::vector<size_t> width(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i)
      line += fmt::format("{:<{}}", row[i], i + 1 < row.size() ? width[i] + 2 : 0);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// Of all rows, in the order in which they first appear.
Row KeysOf(const Json& table) {
  Row keys;
  for (const Json& object : table) {
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  return keys;
}

// Written as a range of numbers would write it: "007" is a name.
bool IsNumber(const std::string& cell) {
  const auto number = WholeNumber<int64_t>(cell);
  return number && *number >= 0 && fmt::to_string(*number) == cell;
}

// In which column alone two rows differ; nothing: in none, in several, or in what is no whole number.
std::optional<size_t> ColumnThatDiffers(const Row& one, const Row& other) {
  const auto first = std::mismatch(one.begin(), one.end(), other.begin());
  if (first.first == one.end() || !std::equal(first.first + 1, one.end(), first.second + 1)) return std::nullopt;
  if (!IsNumber(*first.first) || !IsNumber(*first.second)) return std::nullopt;
  return static_cast<size_t>(first.first - one.begin());
}

// Rows that differ in one number alone as one row, in which that is all their numbers.
std::vector<Row> WithRanges(const std::vector<Row>& rows) {
  std::vector<Row> merged;
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {
    merged.push_back(rows[i]);
    end = i + 1;
    const std::optional<size_t> column = end < rows.size() ? ColumnThatDiffers(rows[i], rows[end]) : std::nullopt;
    if (!column) continue;
    while (end < rows.size() && ColumnThatDiffers(rows[i], rows[end]) == column) ++end;
    std::vector<int64_t> numbers;
    for (size_t k = i; k < end; ++k) numbers.push_back(*WholeNumber<int64_t>(rows[k][*column]));
    merged.back()[*column] = RangesText(numbers);
  }
  return merged;
}

std::string TableText(const Json& table, const std::string& indent) {
  std::vector<Row> rows(1);
  const Row keys = KeysOf(table);
  for (const std::string& key : keys) rows.front().push_back(Clean(key));
  for (const Json& object : table) {
    Row row;
    for (const std::string& key : keys) row.push_back(object.contains(key) ? CellText(object[key]) : "-");
    rows.push_back(std::move(row));
  }
  constexpr size_t kMany = 16;  // a person reads so many
  return Aligned(table.size() > kMany ? WithRanges(rows) : rows, indent);
}

std::string ObjectText(const Json& object, const std::string& indent);

// What needs lines of its own below its key; empty for what fits behind it.
std::string BelowText(const Json& value, const std::string& indent) {
  std::string text;
  if (IsTable(value)) return TableText(value, indent);
  if (value.is_object() && !value.empty()) return ObjectText(value, indent);
  if (IsLines(value)) {
    for (const Json& line : value) text += indent + CellText(line) + "\n";
  }
  if (IsBlocks(value)) {
    for (const Json& block : value) text += (text.empty() ? "" : "\n") + ObjectText(block, indent);
  }
  return text;
}

std::string ObjectText(const Json& object, const std::string& indent) {
  size_t width = 0;
  for (const auto& [key, value] : object.items()) width = std::max(width, Clean(key).size());
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (const std::string below = BelowText(value, indent + "  "); !below.empty()) {
      text += indent + Clean(key) + "\n" + below;
    } else {
      text += fmt::format("{}{:<{}}  {}\n", indent, Clean(key), width, CellText(value));
    }
  }
  return text;
}

}  // namespace

std::string RenderJson(const Json& report) { return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string RenderText(const Json& report) {
  const std::string below = BelowText(report, "");
  return below.empty() ? CellText(report) + "\n" : below;
}

}  // namespace lockstep
