#include "lockstep/base/clean.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/report.h"

namespace lockstep {
namespace {

TEST(Clean, LeavesNothingThatSteersATerminal) {
  EXPECT_EQ(Clean("a\033[2Jb\nc\x7f"), "a [2Jb c ");
  EXPECT_EQ(Clean("é▇"), "é▇");
  EXPECT_EQ(Clean("a\xC2\x9B"
                  "2J\xC2\x80\xC2\xA0\xC2"),
            "a 2J \xC2\xA0\xC2");
}

TEST(Clean, KeepsLinesApartWhereThereAreSome) {
  EXPECT_EQ(CleanLines("a\033[31m\nb\tc\r\n"), "a [31m\nb c \n");
  EXPECT_EQ(Clean("bad \033[31m\nvalue"), "bad  [31m value");
}

TEST(Clean, IsWhatAReportIsAsText) {
  const Json report = {{"job", "a\nb"},
                       {"rows", {{{"name", "x\033[2J"}, {"n", 1}}}},
                       {"lines", {"one\033", "two\r"}},
                       {"list", {{"why", {{"deep", "\x07"}}}}},
                       {"env", {{"A\033[2J", 1}}},
                       {"B\033[2J", 1},
                       {"of", {{{"C\033[2J", 7}}}},
                       {"blocks", {{{"D\033[2J", {{"E\033[2J", 1}}}}}}};
  const std::string text = RenderText(report);
  EXPECT_EQ(text.find_first_of("\033\r\x07"), std::string::npos) << text;
  EXPECT_NE(text.find("a b"), std::string::npos) << text;
  for (const char* name : {"A [2J", "B [2J", "C [2J\n  7", "D [2J", "E [2J"})
    EXPECT_NE(text.find(name), std::string::npos) << name << " in\n" << text;
  EXPECT_NE(RenderJson(report).find("x\\u001b[2J"), std::string::npos) << "JSON has it as it is";
}

}  // namespace
}  // namespace lockstep
