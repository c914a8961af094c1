#include "lockstep/detect/replay_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::detect {
namespace {

using testing::HasSubstr;

ReplayValue Value(int rank, int ranks, const char* scope, const char* digest, int64_t not_finite = 0) {
  return {3, "gradient", rank, ranks, scope, digest, not_finite};
}

ReplayVotes Votes(const std::vector<ReplayValue>& values) {
  ReplayVotes votes;
  for (const ReplayValue& value : values) votes.Add(value);
  return votes;
}

TEST(ReplayVotes, TheRarerValueDiffers) {
  const ReplayVotes votes = Votes({Value(0, 2, "group", "a"), Value(1, 2, "group", "a"), Value(0, 2, "group", "b")});
  EXPECT_EQ(votes.Objection(Value(0, 2, "group", "a")), std::nullopt);
  EXPECT_EQ(votes.Objection(Value(0, 2, "group", "b")), "gradient of step 3 differs from 2 of 3");
}

TEST(ReplayVotes, OfAsManyBothDiffer) {
  const ReplayVotes votes = Votes({Value(0, 2, "rank", "a"), Value(0, 2, "rank", "b")});
  for (const char* digest : {"a", "b"})
    EXPECT_EQ(votes.Objection(Value(0, 2, "rank", digest)), "gradient of step 3: 1 of 2 differ, and none is the rule");
}

TEST(ReplayVotes, OnlyWhatMustAgreeIsCompared) {
  const ReplayVotes votes =
      Votes({Value(0, 2, "rank", "a"), Value(1, 2, "rank", "b"), Value(0, 3, "rank", "c"), Value(0, 2, "group", "d"),
             Value(0, 3, "group", "e"), Value(0, 1, "everywhere", "f"), Value(1, 3, "everywhere", "f")});
  EXPECT_EQ(votes.Objection(Value(1, 2, "rank", "b")), std::nullopt);
  EXPECT_EQ(votes.Objection(Value(0, 3, "rank", "c")), std::nullopt);
  EXPECT_EQ(votes.Objection(Value(0, 3, "group", "e")), std::nullopt);
  EXPECT_EQ(votes.Objection(Value(0, 1, "everywhere", "f")), std::nullopt);
}

TEST(ReplayVotes, WhatIsNoNumberIsWrongHoweverManyHaveIt) {
  const ReplayVotes votes = Votes({Value(0, 2, "group", "a", 7), Value(1, 2, "group", "a", 7)});
  EXPECT_EQ(votes.Objection(Value(0, 2, "group", "a", 7)), "gradient of step 3 has 7 values that are NaN or infinite");
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
