// Reads one TOML table field by field into a struct: each call checks presence, type and range of one key, and Finish()
// names the first thing that is wrong, in the order of the calls; then keys that nobody asked for, with the nearest
// name that would be right. Absent keys leave their field as it is. Every error reads "file:line:column: table.key must
// be ..., found ...". Thread-compatible.
//
//   TableReader reader(root, "job.toml");
//   reader.Table("layout", [&](TableReader& in) { in.Integer("tp", {.least = 1}, layout.tp); });
//   return reader.Finish();
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::cluster {

struct IntegerRange {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
};

enum class Sign : uint8_t { kAny, kNotNegative, kPositive };

class TableReader {
 public:
  // `table` and `file` must outlive the reader. `path` is the table's own name with a dot behind it: "layout.".
  TableReader(const TomlValue& table, std::string_view file, std::string path = "")
      : table_(table), file_(file), path_(std::move(path)) {}

  // Keys without which the table means nothing; nor does one that holds an empty text.
  void Require(std::initializer_list<std::string_view> keys);
  // Range limits what T can hold, too.
  template <typename T>
  void Integer(std::string_view key, IntegerRange range, T& out) {
    using Held = typename Plain<T>::type;
    range.least =
        std::max<int64_t>(range.least, std::is_unsigned_v<Held> ? 0 : ToInt64(std::numeric_limits<Held>::min()));
    range.most = std::min(range.most, ToInt64(std::numeric_limits<Held>::max()));
    if (const std::optional<int64_t> value = IntegerAt(key, range)) out = static_cast<Held>(*value);
  }
  // An integer is a number too. Infinities and NaN are refused, also those that `scale` makes of a number. T: double, a
  // Quantity of double, or an optional of one; times `scale`.
  template <typename T>
  void Number(std::string_view key, Sign sign, T& out, double scale = 1) {
    const std::optional<double> value = NumberAt(key, sign, scale);
    if constexpr (std::is_same_v<typename Plain<T>::type, double>) {
      if (value) out = *value;
    } else {
      if (value) out = typename Plain<T>::type{*value};
    }
  }
  template <typename T>
  void Text(std::string_view key, T& out) {
    if (const TomlValue* value = Typed(key, TomlValue::Kind::kText, "a string")) out = value->text;
  }
  template <typename T>
  void OneOf(std::string_view key, std::initializer_list<std::string_view> choices, T& out) {
    if (const std::string* value = ChoiceAt(key, choices)) out = *value;
  }
  template <typename T>
  void Boolean(std::string_view key, T& out) {
    if (const TomlValue* value = Typed(key, TomlValue::Kind::kBoolean, "true or false")) out = value->boolean;
  }
  // For a key that may hold a string or something else; asks for nothing yet.
  bool HoldsText(std::string_view key) const;
  bool Holds(std::string_view key) const;
  void Texts(std::string_view key, std::vector<std::string>& out);
  // Both call `read` with a reader of their own, for the table or for each table of the array, and finish it.
  void Table(std::string_view key, const std::function<void(TableReader&)>& read);
  void Tables(std::string_view key, const std::function<void(TableReader&)>& read);

  // A failed check of the caller's own: "file:line:column: table.text", at the key where it is present, else at the
  // table.
  void Fail(std::string_view key, std::string_view text);
  // The same for a check that says which of this table's fields it means with its first word.
  void Check(const absl::Status& status);
  absl::Status Finish();

 private:
  template <typename T>
  struct Plain {
    using type = T;
  };
  template <typename T>
  struct Plain<std::optional<T>> {
    using type = T;
  };
  template <typename T>
  static constexpr int64_t ToInt64(T value) {
    return std::cmp_greater(value, std::numeric_limits<int64_t>::max()) ? std::numeric_limits<int64_t>::max()
                                                                        : static_cast<int64_t>(value);
  }

  const TomlMember* Find(std::string_view key);
  const TomlValue* Typed(std::string_view key, TomlValue::Kind kind, std::string_view expected);
  std::optional<int64_t> IntegerAt(std::string_view key, const IntegerRange& range);
  std::optional<double> NumberAt(std::string_view key, Sign sign, double scale);
  const std::string* ChoiceAt(std::string_view key, std::initializer_list<std::string_view> choices);
  void FailAt(const TomlPlace& place, std::string_view text);
  void Adopt(TableReader& inner);

  const TomlValue& table_;
  std::string_view file_;
  std::string path_;
  std::vector<std::string> asked_;
  absl::Status status_;
};

// The shortest candidate that goes on where `word` ends; else the one that differs from it in the fewest letters, if
// they are few enough to be a slip; else empty.
std::string_view Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace lockstep::cluster
