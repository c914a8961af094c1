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
                       {"list", {{"why", {{"deep", "\x07"}}}}}};
  const std::string text = RenderText(report);
  EXPECT_EQ(text.find_first_of("\033\r\x07"), std::string::npos) << text;
  EXPECT_NE(text.find("a b"), std::string::npos) << text;
  EXPECT_NE(RenderJson(report).find("x\\u001b[2J"), std::string::npos) << "JSON has it as it is";
}

}  // namespace
}  // namespace lockstep
