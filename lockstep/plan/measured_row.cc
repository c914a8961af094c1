#include "lockstep/plan/measured_row.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/number.h"
#include "lockstep/plan/layout.h"

namespace lockstep::plan {

std::string KnownText(std::string_view field) {
  constexpr std::array kNobodyKnows = {"unknown", "na", "n/a", "nan", "-", "?"};
  std::string text(field);
  absl::StripAsciiWhitespace(&text);
  const bool is_empty = std::ranges::find(kNobodyKnows, absl::AsciiStrToLower(text)) != kNobodyKnows.end();
  return is_empty ? "" : text;
}

std::string MeasuredRow::Word(std::string_view column) const {
  std::string text(table_.Field(row_, column));
  absl::StripAsciiWhitespace(&text);
  return absl::AsciiStrToLower(text);
}

std::optional<double> MeasuredRow::Number(std::string_view column) {
  const std::string text = Text(column);
  if (text.empty()) return std::nullopt;
  const auto value = WholeNumber<double>(text);
  const bool is_number = value && std::isfinite(*value);
  if (!is_number || *value < 0) Fail(fmt::format("column {} is \"{}\"; expected a number not below 0", column, text));
  return is_number ? value : std::nullopt;
}

int MeasuredRow::Integer(std::string_view column, int otherwise) {
  const std::optional<double> value = Number(column);
  if (!value && otherwise < 0) Fail(fmt::format("column {} is empty", column));
  if (value && (*value != std::floor(*value) || *value > 1e9))
    Fail(fmt::format("column {} is {}; expected a whole number", column, *value));
  return value ? static_cast<int>(std::min(*value, 1e9)) : otherwise;
}

int MeasuredRow::Ranks(std::string_view column, int otherwise) {
  const int value = Integer(column, otherwise);
  if (value <= kMostAccelerators) return value;
  Fail(fmt::format("column {} is {}; expected at most {}", column, value, kMostAccelerators));
  return 1;
}

bool MeasuredRow::Flag(std::string_view column, bool otherwise) {
  if (const std::string word = Word(column); word == "true" || word == "false") return word == "true";
  const int value = Integer(column, otherwise ? 1 : 0);
  if (value > 1) Fail(fmt::format("column {} is {}; expected 0 or 1", column, value));
  return value == 1;
}

}  // namespace lockstep::plan
