#include "lockstep/detect/round_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Each part {rank, came, left}.
Round Of(std::vector<Part> parts) {
  Round round;
  round.began_ns = parts.front().came_ns;
  for (const Part& part : parts) round.began_ns = std::min(round.began_ns, part.came_ns);
  round.members = parts.size();
  round.parts = std::move(parts);
  return round;
}

// Rank 1 is late in a pair, and 2 opens what it and 1 are in next before that pair has ended.
TEST(RoundOrder, WhatARankWentThroughFirstComesFirst) {
  const std::vector<Round> rounds = {Of({{1, 31, 40, 0}, {2, 10, 40, 0}}), Of({{0, 20, 31, 0}, {1, 30, 31, 0}})};
  EXPECT_THAT(OrderOfRanks(rounds), ElementsAre(1, 0));
}

// That of rank 2 is 25 ahead: by the last arrival the second round would be the first.
TEST(RoundOrder, ClocksOfHostsDoNotMatter) {
  const std::vector<Round> rounds = {Of({{0, 10, 20, 0}, {2, 40, 45, 0}}), Of({{0, 21, 30, 0}, {1, 22, 30, 0}}),
                                     Of({{1, 31, 35, 0}, {2, 46, 60, 0}})};
  EXPECT_THAT(OrderOfRanks(rounds), ElementsAre(0, 1, 2));
  EXPECT_THAT(OrderOfRanks({rounds[1], rounds[2], rounds[0]}), ElementsAre(2, 0, 1));
}

// Two under way at once, launched the other way round by the other rank.
TEST(RoundOrder, OfContraryOnesTheOneAllCameToSoonerIsFirst) {
  const std::vector<Round> rounds = {Of({{0, 1, 60, 0}, {1, 9, 60, 0}}), Of({{0, 5, 50, 0}, {1, 2, 50, 0}}),
                                     Of({{0, 61, 70, 0}, {1, 62, 70, 0}})};
  EXPECT_THAT(OrderOfRanks(rounds), ElementsAre(1, 0, 2));
}

TEST(RoundOrder, OfNoneIsEmpty) { EXPECT_THAT(OrderOfRanks({}), IsEmpty()); }

}  // namespace
}  // namespace lockstep::detect
