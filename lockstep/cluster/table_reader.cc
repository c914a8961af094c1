#include "lockstep/cluster/table_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::cluster {
namespace {

// Levenshtein distance, one row at a time.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// A bound that only says what the field's type can hold is left out while it is not the one that was crossed.
std::string Expected(const IntegerRange& range, int64_t found) {
  const bool open = range.most == std::numeric_limits<int64_t>::max() || range.most == std::numeric_limits<int>::max();
  if (open && found < range.least) return fmt::format("at least {}", range.least);
  return fmt::format("between {} and {}", range.least, range.most);
}

}  // namespace

std::string_view Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // Longer words are never slips for a key of ours; this also bounds the cost on hostile input.
  if (word.size() > 64) return {};
  std::string_view best;
  for (const std::string& candidate : candidates) {
    const bool goes_on = word.size() > 1 && candidate.starts_with(word);
    if (goes_on && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  if (!best.empty()) return best;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(word, candidate);
    if (distance < least && distance < candidate.size()) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

const TomlMember* TableReader::Find(std::string_view key) {
  asked_.emplace_back(key);
  const auto member =
      std::find_if(table_.members.begin(), table_.members.end(), [&](const TomlMember& m) { return m.key == key; });
  return member == table_.members.end() ? nullptr : &*member;
}

bool TableReader::Holds(std::string_view key) const {
  return std::any_of(table_.members.begin(), table_.members.end(), [&](const TomlMember& m) { return m.key == key; });
}

bool TableReader::HoldsText(std::string_view key) const {
  return std::any_of(table_.members.begin(), table_.members.end(),
                     [&](const TomlMember& m) { return m.key == key && m.value.kind == TomlValue::Kind::kText; });
}

void TableReader::FailAt(const TomlPlace& place, std::string_view text) {
  if (status_.ok()) status_ = InvalidArgument("{}:{}:{}: {}{}", file_, place.line, place.column, path_, text);
}

void TableReader::Fail(std::string_view key, std::string_view text) {
  const TomlMember* member = Find(key);
  FailAt(member != nullptr ? member->value.place : table_.place, text);
}

void TableReader::Check(const absl::Status& status) {
  if (status.ok()) return;
  const std::string text = Message(status);
  Fail(text.substr(0, text.find(' ')), text);
}

void TableReader::Require(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const TomlMember* member = Find(key);
    if (member == nullptr) {
      FailAt(table_.place, fmt::format("{} is missing", key));
    } else if (member->value.kind == TomlValue::Kind::kText && member->value.text.empty()) {
      FailAt(member->value.place, fmt::format("{} must not be empty", key));
    }
  }
}

const TomlValue* TableReader::Typed(std::string_view key, TomlValue::Kind kind, std::string_view expected) {
  const TomlMember* member = Find(key);
  if (member == nullptr || member->value.kind == kind) return member == nullptr ? nullptr : &member->value;
  FailAt(member->value.place, fmt::format("{} must be {}, found {}", key, expected, Quoted(member->value)));
  return nullptr;
}

std::optional<int64_t> TableReader::IntegerAt(std::string_view key, const IntegerRange& range) {
  const TomlValue* value = Typed(key, TomlValue::Kind::kInteger, "a whole number");
  if (value == nullptr) return std::nullopt;
  if (value->integer >= range.least && value->integer <= range.most) return value->integer;
  FailAt(value->place, fmt::format("{} must be {}, found {}", key, Expected(range, value->integer), value->integer));
  return std::nullopt;
}

std::optional<double> TableReader::NumberAt(std::string_view key, Sign sign, double scale) {
  const TomlMember* member = Find(key);
  if (member == nullptr) return std::nullopt;
  const TomlValue& value = member->value;
  const bool whole = value.kind == TomlValue::Kind::kInteger;
  const double number = whole ? static_cast<double>(value.integer) : value.number;
  if ((!whole && value.kind != TomlValue::Kind::kNumber) || !std::isfinite(number)) {
    FailAt(value.place, fmt::format("{} must be a number, found {}", key, Quoted(value)));
  } else if (number < 0 && sign != Sign::kAny) {
    FailAt(value.place, fmt::format("{} must not be negative, found {}", key, Quoted(value)));
  } else if (number * scale == 0 && sign == Sign::kPositive) {
    FailAt(value.place, fmt::format("{} must be more than 0, found {}", key, Quoted(value)));
  } else if (!std::isfinite(number * scale)) {
    FailAt(value.place, fmt::format("{} is too large, found {}", key, Quoted(value)));
  } else {
    return number * scale;
  }
  return std::nullopt;
}

const std::string* TableReader::ChoiceAt(std::string_view key, std::initializer_list<std::string_view> choices) {
  const TomlValue* value = Typed(key, TomlValue::Kind::kText, "a string");
  if (value == nullptr) return nullptr;
  if (std::find(choices.begin(), choices.end(), value->text) != choices.end()) return &value->text;
  FailAt(value->place, fmt::format("{} must be one of {}, found \"{}\"", key, fmt::join(choices, ", "), value->text));
  return nullptr;
}

void TableReader::Texts(std::string_view key, std::vector<std::string>& out) {
  const TomlValue* array = Typed(key, TomlValue::Kind::kArray, "an array of strings");
  if (array == nullptr) return;
  out.clear();
  for (const TomlValue& item : array->items) {
    if (item.kind != TomlValue::Kind::kText) {
      return FailAt(item.place, fmt::format("{} must hold strings only, found {}", key, Quoted(item)));
    }
    out.push_back(item.text);
  }
}

void TableReader::Adopt(TableReader& inner) {
  const absl::Status status = inner.Finish();
  if (status_.ok()) status_ = status;
}

void TableReader::Table(std::string_view key, const std::function<void(TableReader&)>& read) {
  const TomlValue* table = Typed(key, TomlValue::Kind::kTable, "a table");
  if (table == nullptr) return;
  TableReader inner(*table, file_, fmt::format("{}{}.", path_, key));
  read(inner);
  Adopt(inner);
}

void TableReader::Tables(std::string_view key, const std::function<void(TableReader&)>& read) {
  const TomlValue* array = Typed(key, TomlValue::Kind::kArray, "an array of tables");
  if (array == nullptr) return;
  for (const TomlValue& item : array->items) {
    if (item.kind != TomlValue::Kind::kTable) {
      return FailAt(item.place, fmt::format("{} must hold tables only, found {}", key, Quoted(item)));
    }
    TableReader inner(item, file_, fmt::format("{}{}.", path_, key));
    read(inner);
    Adopt(inner);
  }
}

absl::Status TableReader::Finish() {
  for (const TomlMember& member : table_.members) {
    if (std::find(asked_.begin(), asked_.end(), member.key) != asked_.end()) continue;
    const std::string_view nearest = Nearest(member.key, asked_);
    FailAt(member.place, nearest.empty() ? fmt::format("{} is not a known key", member.key)
                                         : fmt::format("{} is not a known key; did you mean {}?", member.key, nearest));
  }
  return status_;
}

}  // namespace lockstep::cluster
