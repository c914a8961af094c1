#include "lockstep/detect/replay_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Values = std::vector<ReplayValue>;

ReplayValue Value(int rank, int ranks, const char* scope, const char* digest, int64_t step = 3,
                  int64_t not_finite = 0) {
  return {step, "gradient", rank, ranks, scope, digest, not_finite};
}

// "rank: text" of each run's objections.
std::vector<std::vector<std::string>> Judge(const std::vector<Values>& runs) {
  std::vector<std::vector<std::string>> lines;
  for (const auto& run : ReplayVotes().Judge(runs)) {
    lines.emplace_back();
    for (const Objection& one : run) lines.back().push_back(fmt::format("{}: {}", one.rank, one.text));
  }
  return lines;
}

TEST(ReplayVotes, TheRarerValueIsWrong) {
  EXPECT_THAT(Judge({{Value(0, 2, "group", "a"), Value(1, 2, "group", "a")}, {Value(0, 2, "group", "b")}}),
              ElementsAre(IsEmpty(), ElementsAre("0: gradient of step 3 differs from 2 of 3")));
}

TEST(ReplayVotes, OfTwoAsFrequentBothAre) {
  EXPECT_THAT(Judge({{Value(0, 2, "rank", "a")}, {Value(0, 2, "rank", "b")}}),
              testing::Each(ElementsAre("0: gradient of step 3: 1 of 2 differ, and none is the rule")));
}

TEST(ReplayVotes, OnlyWhatMustAgreeIsCompared) {
  EXPECT_THAT(Judge({{Value(0, 2, "rank", "a"), Value(1, 2, "rank", "b")},
                     {Value(0, 3, "rank", "c")},
                     {Value(0, 2, "group", "d")},
                     {Value(0, 3, "group", "e")},
                     {Value(0, 1, "everywhere", "f"), Value(1, 3, "everywhere", "f")}}),
              testing::Each(IsEmpty()));
}

TEST(ReplayVotes, WhatIsNoNumberIsWrongHoweverManyHaveIt) {
  EXPECT_THAT(Judge({{Value(0, 2, "group", "a", 3, 7)}, {Value(1, 2, "group", "a", 3, 7)}}),
              testing::Each(ElementsAre(HasSubstr("gradient of step 3 has 7 values that are NaN or infinite"))));
}

// One rank's gradient is wrong before it is reduced, and so the sum of its group: two sums, none the rule.
TEST(ReplayVotes, ARunThatIsWrongHasNoVoteOnWhatFollows) {
  const auto run = [](const char* own, const char* sum) {
    return Values{Value(0, 2, "everywhere", "a", 0), Value(1, 2, "everywhere", own, 0), Value(0, 2, "group", sum, 0),
                  Value(1, 2, "group", sum, 0), Value(0, 2, "group", sum, 1)};
  };
  EXPECT_THAT(Judge({run("a", "s"), run("b", "t")}),
              ElementsAre(IsEmpty(), ElementsAre("1: gradient of step 0 differs from 3 of 4")));
}

TEST(ReplayVotes, RunsOfBeforeHaveAVote) {
  ReplayVotes votes;
  const Values well = {Value(0, 1, "rank", "a")}, ill = {Value(0, 1, "rank", "b")};
  EXPECT_THAT(votes.Judge({well, well, ill})[2], testing::SizeIs(1));
  const auto later = votes.Judge({ill, ill});  // two against two of before, as the first was taken out
  EXPECT_THAT(later[0], testing::SizeIs(1));
  EXPECT_THAT(later[0][0].text, HasSubstr("none is the rule"));
}

TEST(ReplayReport, IsReadLineByLine) {
  const auto values = ParseReplayReport(
      "{\"step\": 1, \"scope\": \"group\", \"values\": {\"w\": [\"ab\", 0], \"loss\": [\"cd\", 1]}}\n{\"step\": 2, "
      "\"sco",
      1, 4);
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(2u, values->size());
  EXPECT_EQ("w", (*values)[0].name);
  EXPECT_EQ(4, (*values)[0].ranks);
  EXPECT_EQ(1, (*values)[1].not_finite);
  for (const char* line :
       {"x\n", "[]\n", "{\"values\": 3}\n", "{\"values\": {\"w\": [1, 2]}}\n", "{\"values\": {\"w\": [\"a\"]}}\n"}) {
    EXPECT_THAT(Message(ParseReplayReport(line, 1, 4).status()), HasSubstr("rank 1: expected a report of values"))
        << line;
  }
}

}  // namespace
}  // namespace lockstep::detect
