#include "lockstep/cluster/table_reader.h"

#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/units.h"

namespace lockstep::cluster {
namespace {

std::string ErrorOf(std::string_view text, const std::function<void(TableReader&)>& read) {
  const absl::StatusOr<TomlValue> root = ParseToml(text, "x.toml");
  if (!root.ok()) return Message(root.status());
  TableReader reader(*root, "x.toml");
  read(reader);
  return Message(reader.Finish());
}

TEST(Toml, KeepsOrderKindsAndPlaces) {
  const absl::StatusOr<TomlValue> root = ParseToml("b = 1\na = [true, 2.5, 'x', 1979-05-27]\n[t]\n  k = 2\n", "x.toml");
  ASSERT_TRUE(root.ok()) << root.status();
  ASSERT_EQ(root->members.size(), 3U);
  EXPECT_EQ(root->members[0].key, "b");
  EXPECT_EQ(root->members[1].key, "a");
  EXPECT_EQ(Quoted(root->members[1].value.items[0]), "true");
  EXPECT_EQ(Quoted(root->members[1].value.items[1]), "2.5");
  EXPECT_EQ(Quoted(root->members[1].value.items[2]), "\"x\"");
  EXPECT_EQ(Quoted(root->members[1].value.items[3]), "a date or time");
  const TomlMember& k = root->members[2].value.members[0];
  EXPECT_EQ(k.place.line, 4);
  EXPECT_EQ(k.place.column, 3);
  EXPECT_EQ(k.value.place.column, 7);
}

TEST(Toml, MalformedTextNamesItsPlace) {
  EXPECT_EQ(ErrorOf("a = 1\nb = [1,\n", [](TableReader&) {}).substr(0, 11), "x.toml:2:9:");
  EXPECT_EQ(ErrorOf("a = 1\na = 2\n", [](TableReader&) {}).substr(0, 9), "x.toml:2:");
}

TEST(TableReader, FillsWhatIsThereAndLeavesTheRest) {
  int count = 7, absent = 9;
  std::optional<Seconds> limit;
  std::optional<bool> flag;
  std::string text;
  std::vector<std::string> words;
  EXPECT_EQ(ErrorOf("count = 3\nlimit_ms = 1500\nflag = false\ntext = 'hi'\nwords = ['a', 'b']\n",
                    [&](TableReader& in) {
                      in.Integer("count", {.least = 1}, count);
                      in.Integer("absent", {}, absent);
                      in.Number("limit_ms", Sign::kPositive, limit, 1e-3);
                      in.Boolean("flag", flag);
                      in.Text("text", text);
                      in.Texts("words", words);
                    }),
            "");
  EXPECT_EQ(count, 3);
  EXPECT_EQ(absent, 9);
  EXPECT_EQ(limit, Seconds{1.5});
  EXPECT_EQ(flag, false);
  EXPECT_EQ(text, "hi");
  EXPECT_EQ(words, (std::vector<std::string>{"a", "b"}));
}

TEST(TableReader, RefusesWrongTypesAndRanges) {
  int n = 0;
  double x = 0;
  uint8_t small = 0;
  std::string word;
  const auto integer = [&](TableReader& in) { in.Integer("n", {.least = 1}, n); };
  const auto number = [&](TableReader& in) { in.Number("x", Sign::kPositive, x); };
  EXPECT_EQ(ErrorOf("n = 0", integer), "x.toml:1:5: n must be at least 1, found 0");
  EXPECT_EQ(ErrorOf("n = 'a'", integer), "x.toml:1:5: n must be a whole number, found \"a\"");
  EXPECT_EQ(ErrorOf("n = 99999999999", integer), "x.toml:1:5: n must be between 1 and 2147483647, found 99999999999");
  EXPECT_EQ(ErrorOf("n = 256", [&](TableReader& in) { in.Integer("n", {}, small); }),
            "x.toml:1:5: n must be between 0 and 255, found 256");
  EXPECT_EQ(ErrorOf("x = 0", number), "x.toml:1:5: x must be more than 0, found 0");
  EXPECT_EQ(ErrorOf("x = -1.5", number), "x.toml:1:5: x must not be negative, found -1.5");
  EXPECT_EQ(ErrorOf("x = inf", number), "x.toml:1:5: x must be a number, found inf");
  EXPECT_EQ(ErrorOf("w = 'up'", [&](TableReader& in) { in.OneOf("w", {"left", "right"}, word); }),
            "x.toml:1:5: w must be one of left, right, found \"up\"");
}

TEST(TableReader, RefusesWhatItsUnitMakesInfiniteOrNothing) {
  double x = 7;
  const auto tera = [&](TableReader& in) { in.Number("x", Sign::kPositive, x, 1e12); };
  EXPECT_EQ(ErrorOf("x = 1e300", tera), "x.toml:1:5: x is too large, found 1e+300");
  EXPECT_EQ(ErrorOf("x = 1e-320", [&](TableReader& in) { in.Number("x", Sign::kPositive, x, 1e-9); }),
            "x.toml:1:5: x must be more than 0, found 1e-320");
  EXPECT_EQ(x, 7);
}

TEST(TableReader, ARequiredTextIsNotEmpty) {
  const auto read = [](TableReader& in) { in.Require({"name"}); };
  EXPECT_EQ(ErrorOf("name = ''", read), "x.toml:1:8: name must not be empty");
  EXPECT_EQ(ErrorOf("name = 'a'", read), "");
}

TEST(Nearest, GoesOnWhereTheWordEndsOrIsASlip) {
  const std::vector<std::string> names = {"a100-sxm-80gb", "b200", "h100-sxm-80gb", "h100-sxm", "h200-sxm"};
  EXPECT_EQ(Nearest("h100", names), "h100-sxm");
  EXPECT_EQ(Nearest("h100-smx", names), "h100-sxm");
  EXPECT_EQ(Nearest("b20", names), "b200");
  EXPECT_EQ(Nearest("", names), "");
  EXPECT_EQ(Nearest("h", names), "");
}

TEST(TableReader, NamesTheTableAndTheMissingKey) {
  const auto read = [](TableReader& in) { in.Table("inner", [](TableReader& inner) { inner.Require({"name"}); }); };
  EXPECT_EQ(ErrorOf("\n[inner]\n", read), "x.toml:2:1: inner.name is missing");
  EXPECT_EQ(ErrorOf("inner = 3", read), "x.toml:1:9: inner must be a table, found 3");
}

TEST(TableReader, NamesTheNearestKeyForAnUnknownOne) {
  int n = 0;
  const auto read = [&](TableReader& in) {
    in.Integer("max_restarts", {}, n);
    in.Integer("tp", {}, n);
  };
  EXPECT_EQ(ErrorOf("\n  max_restart = 3", read),
            "x.toml:2:3: max_restart is not a known key; did you mean max_restarts?");
  EXPECT_EQ(ErrorOf("pt = 3", read), "x.toml:1:1: pt is not a known key");
  EXPECT_EQ(ErrorOf("something = 3", read), "x.toml:1:1: something is not a known key");
}

TEST(TableReader, ReadsEachTableOfAnArray) {
  std::vector<int> sizes;
  const auto read = [&](TableReader& in) {
    in.Tables("part", [&](TableReader& inner) { inner.Integer("size", {.least = 1}, sizes.emplace_back()); });
  };
  EXPECT_EQ(ErrorOf("[[part]]\nsize = 1\n[[part]]\nsize = 2\n", read), "");
  EXPECT_EQ(sizes, (std::vector<int>{1, 2}));
  EXPECT_EQ(ErrorOf("[[part]]\nsize = 1\n[[part]]\nsize = 0\n", read),
            "x.toml:4:8: part.size must be at least 1, found 0");
  EXPECT_EQ(ErrorOf("part = [1]", read), "x.toml:1:9: part must hold tables only, found 1");
}

}  // namespace
}  // namespace lockstep::cluster
