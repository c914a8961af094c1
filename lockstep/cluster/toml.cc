#include "lockstep/cluster/toml.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

namespace lockstep::cluster {
namespace {

TomlPlace PlaceOf(const toml::source_region& source) {
  return {static_cast<int>(source.begin.line), static_cast<int>(source.begin.column)};
}

bool Before(const TomlPlace& a, const TomlPlace& b) { return a.line != b.line ? a.line < b.line : a.column < b.column; }

TomlValue Convert(const toml::node& node);

void ConvertMembers(const toml::table& table, TomlValue& value) {
  for (const auto& [key, node] : table) {
    value.members.push_back({std::string(key.str()), PlaceOf(key.source()), Convert(node)});
  }
  // toml++ sorts by key; errors should come in the order in which a person reads the file.
  std::sort(value.members.begin(), value.members.end(),
            [](const TomlMember& a, const TomlMember& b) { return Before(a.place, b.place); });
}

// Recursion is bounded: toml++ refuses more than 256 nested values.
TomlValue Convert(const toml::node& node) {
  using Kind = TomlValue::Kind;
  TomlValue value;
  value.kind = Kind::kTime;
  value.place = PlaceOf(node.source());
  if (const toml::table* table = node.as_table()) {
    value.kind = Kind::kTable;
    ConvertMembers(*table, value);
  } else if (const toml::array* array = node.as_array()) {
    value.kind = Kind::kArray;
    for (const toml::node& item : *array) value.items.push_back(Convert(item));
  } else if (const auto* text = node.as_string()) {
    value.kind = Kind::kText;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.kind = Kind::kNumber;
    value.number = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = Kind::kBoolean;
    value.boolean = boolean->get();
  }
  return value;
}

}  // namespace

std::string TomlText(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += code < 0x20 || code == 0x7f ? fmt::format("\\u{:04x}", code) : std::string(1, c);
  }
  return quoted + '"';
}

std::string Quoted(const TomlValue& value) {
  switch (value.kind) {
    case TomlValue::Kind::kTable:
      return "a table";
    case TomlValue::Kind::kArray:
      return "an array";
    case TomlValue::Kind::kText:
      return fmt::format("\"{}\"", value.text);
    case TomlValue::Kind::kInteger:
      return fmt::format("{}", value.integer);
    case TomlValue::Kind::kNumber:
      return fmt::format("{}", value.number);
    case TomlValue::Kind::kBoolean:
      return value.boolean ? "true" : "false";
    case TomlValue::Kind::kTime:
      return "a date or time";
  }
  return "?";
}

absl::StatusOr<TomlValue> ParseToml(std::string_view text, std::string_view file) {
  try {
    return Convert(toml::parse(text));
  } catch (const toml::parse_error& error) {
    const TomlPlace place = PlaceOf(error.source());
    return InvalidArgument("{}:{}:{}: {}", file, place.line, place.column, error.description());
  }
}

}  // namespace lockstep::cluster
