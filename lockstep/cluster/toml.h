// A TOML document as plain values that remember their line and column. toml++ parses; its header stays in toml.cc.
// Invariants: members stand in the order of the file; positions count from 1; `items` and `members` are set for kArray
// and kTable only. Thread-compatible.
//
//   LS_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, "job.toml"));   // "job.toml:3:9: ..." when malformed
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::cluster {

struct TomlPlace {
  int line = 0, column = 0;
};

struct TomlMember;

struct TomlValue {
  enum class Kind : uint8_t { kTable, kArray, kText, kInteger, kNumber, kBoolean, kTime };
  Kind kind = Kind::kTable;
  TomlPlace place;
  std::string text;      // kText
  int64_t integer = 0;   // kInteger
  double number = 0;     // kNumber
  bool boolean = false;  // kBoolean
  std::vector<TomlValue> items;
  std::vector<TomlMember> members;
};

struct TomlMember {
  std::string key;
  TomlPlace place;  // of the key
  TomlValue value;
};

// As an error should quote it: `"abc"`, `3`, `true`, `a table`.
std::string Quoted(const TomlValue& value);

// As a file has it, quotes around it.
std::string TomlText(std::string_view text);

// `file` is for error texts only.
absl::StatusOr<TomlValue> ParseToml(std::string_view text, std::string_view file);

}  // namespace lockstep::cluster
