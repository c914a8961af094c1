#include "lockstep/base/csv.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Error(std::string_view text) { return Message(ParseCsv(text, "t.csv").status()); }

TEST(Csv, FieldsMayHoldCommasQuotesAndLines) {
  const auto table = ParseCsv("a,b\r\n1,\"x, \"\"y\"\"\nz\"\r\n\n,\n", "t.csv");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->columns, ElementsAre("a", "b"));
  ASSERT_EQ(table->rows.size(), 2u);
  EXPECT_THAT(table->rows[0].fields, ElementsAre("1", "x, \"y\"\nz"));
  EXPECT_THAT(table->rows[1].fields, ElementsAre("", ""));
  EXPECT_EQ(table->rows[1].line, 5);
  EXPECT_EQ(table->Field(table->rows[0], "a"), "1");
  EXPECT_EQ(table->Field(table->rows[0], "c"), "");
}

TEST(Csv, OfSpreadsheets) {
  const auto table = ParseCsv(
      "\xEF\xBB\xBF"
      "a,b\r\r\n1,2\r\n",
      "t.csv");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->columns, ElementsAre("a", "b"));
  EXPECT_THAT(table->rows[0].fields, ElementsAre("1", "2"));
}

TEST(Csv, SaysWhereItIsWrong) {
  EXPECT_THAT(Error(""), HasSubstr("t.csv: it is empty"));
  EXPECT_THAT(Error("a,a\n"), HasSubstr("t.csv:1: column \"a\" twice"));
  EXPECT_THAT(Error("a,b\n1,2\n1\n"), HasSubstr("t.csv:3: 1 fields, but 2 columns"));
  EXPECT_THAT(Error("a\n\"x\n"), HasSubstr("t.csv:2: a quote that does not end"));
  EXPECT_THAT(Error("a\n\"x\"y\n"), HasSubstr("t.csv:2: text behind a closing quote"));
}

TEST(Csv, ALastLineMayHaveNoEnd) { EXPECT_EQ(ParseCsv("a\n1", "t.csv")->rows.size(), 1u); }

}  // namespace
}  // namespace lockstep
