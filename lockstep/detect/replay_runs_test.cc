#include "lockstep/detect/replay_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ReplayRound kRound{1, {{0, 1}, {2, 3}}, {.runs = 3, .failures = 1}};

RoundOfRuns Begin(ReplayVotes& votes, const ReplayRound& round = kRound) {
  return {round, votes, [](size_t group, int rank) { return ReplayedRankName(fmt::format("g{}", group), rank); }};
}

TEST(RoundOfRuns, AGroupRunsUntilItIsKnownToBeFaulty) {
  ReplayVotes votes;
  RoundOfRuns runs = Begin(votes);
  EXPECT_THAT(runs.Due(), ElementsAre(0, 1));
  ASSERT_TRUE(runs.Take({{0, "late", {}, Seconds{2}}, {1, "", {}, Seconds{3}}}).ok());
  EXPECT_THAT(runs.Due(), ElementsAre(1));
  ASSERT_TRUE(runs.Take({{1, "", {}, Seconds{3}}}).ok());
  ASSERT_TRUE(runs.Take({{1, "", {}, Seconds{3}}}).ok());
  EXPECT_THAT(runs.Due(), IsEmpty());
  EXPECT_EQ(runs.outcomes()[0].failures, 1);
  EXPECT_EQ(runs.outcomes()[0].runs, 1);
  EXPECT_EQ(runs.outcomes()[1].failures, 0);
  EXPECT_EQ(runs.outcomes()[1].runs, 3);
  EXPECT_EQ(runs.outcomes()[1].took, Seconds{9});
}

TEST(RoundOfRuns, EvidenceNamesTheRank) {
  ReplayVotes votes;
  RoundOfRuns runs = Begin(votes);
  const auto value = [](int rank, const char* digest) {
    return ReplayValue{0, "gradient", rank, 2, "everywhere", digest, 0};
  };
  ASSERT_TRUE(
      runs.Take({{0, "", {value(0, "a"), value(1, "a")}, {}}, {1, "", {value(0, "a"), value(1, "b")}, {}}}).ok());
  EXPECT_THAT(runs.outcomes()[1].evidence,
              ElementsAre("g1 (rank 1 of its group): gradient of step 0 differs from 3 of 4"));
}

TEST(RoundOfRuns, WhatFailsEverywhereInTheFirstRoundIsNoMachinesFault) {
  ReplayVotes votes;
  const std::vector<GroupRun> alike = {{0, "g0 (rank 1 of its group) left with exit status 1: ValueError", {}, {}},
                                       {1, "g1 (rank 0 of its group) left with exit status 1: ValueError", {}, {}}};
  RoundOfRuns first = Begin(votes);
  EXPECT_THAT(Message(first.Take(alike)), HasSubstr("all 2 groups fail alike"));
  ReplayRound second = kRound;
  second.number = 2;
  RoundOfRuns later = Begin(votes, second);
  EXPECT_TRUE(later.Take(alike).ok());
  std::vector<GroupRun> different = alike;
  different[1].trouble = "g1 (rank 0 of its group) left with exit status 1: KeyError";
  RoundOfRuns third = Begin(votes);
  EXPECT_TRUE(third.Take(different).ok());
}

}  // namespace
}  // namespace lockstep::detect
