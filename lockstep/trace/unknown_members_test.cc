#include "lockstep/trace/unknown_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr OpState kEnded = OpState::kCompleted, kOpen = OpState::kStarted;

// Ranks that use number 1 for a group, of which none tells who is in it.
class UnknownMembers : public testing::Test {
 protected:
  UnknownMembers() {
    log_.communicators.push_back({"1", "", {}});
    log_.functions = {"all_reduce", "_all_gather_base", "broadcast"};
    log_.shapes = {"", "[4]", "[8]"};
  }
  void Add(int rank, int64_t sequence, uint32_t function, OpState state, uint32_t shape = 1) {
    CommOp op;
    op.rank = rank;
    op.sequence = sequence;
    op.function = function;
    op.state = state;
    op.shape = shape;
    log_.ops.push_back(op);
    const auto at = std::ranges::lower_bound(log_.reported, rank);
    if (at == log_.reported.end() || *at != rank) log_.reported.insert(at, rank);
  }
  const std::string& Doubt() const { return log_.communicators.front().doubt; }
  std::vector<std::vector<int>> Groups() {
    FillUnknownMembers(log_);
    std::vector<std::vector<int>> groups;
    for (const Communicator& one : log_.communicators) groups.push_back(one.ranks);
    for (const CommOp& op : log_.ops) EXPECT_THAT(groups[op.communicator], testing::Contains(op.rank));
    return groups;
  }

  CommLog log_;
};

// Each process counts the groups that it is in: of a pipeline's ends, 1 may be what is 2 in the middle.
TEST_F(UnknownMembers, ANumberThatSeveralCallOtherwiseIsAnotherGroup) {
  for (int rank = 0; rank < 4; ++rank) Add(rank, 7, static_cast<uint32_t>(rank % 2), kOpen);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(Doubt(), IsEmpty());
}

TEST_F(UnknownMembers, OneThatIsInAnotherOpThanAllOthersMayBeOfTheirGroup) {
  for (const int other : {0, 1, 3}) {
    log_ = {};
    log_.communicators.push_back({"1", "", {}});
    log_.functions = {"all_reduce", "_all_gather_base"};
    for (int rank = 0; rank < 4; ++rank) Add(rank, 7, rank == other ? 1 : 0, kOpen);
    EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1, 2, 3))) << other;
    EXPECT_THAT(Doubt(), HasSubstr("which ranks are in process group 1")) << other;
  }
}

TEST_F(UnknownMembers, ThatHoldsForShapesToo) {
  for (int rank = 0; rank < 3; ++rank) Add(rank, 7, 0, kOpen, rank == 2 ? 2 : 1);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(Doubt(), testing::Not(IsEmpty()));
}

// None ends an op that others of its group do not launch.
TEST_F(UnknownMembers, WhoHasEndedWhatDiffersIsOfAnotherGroup) {
  Add(0, 7, 0, kOpen);
  Add(1, 7, 0, kOpen);
  Add(2, 7, 1, kEnded);
  Add(2, 8, 0, kOpen);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(Doubt(), IsEmpty());
}

TEST_F(UnknownMembers, ARootMayEndWhatOthersDoNotLaunch) {
  Add(0, 7, 0, kOpen);
  Add(1, 7, 0, kOpen);
  Add(2, 7, 2, kEnded);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1, 2)));
}

// Rank 3 has launched none of its group yet, which may be that of rank 1.
TEST_F(UnknownMembers, OneIsByItselfWhereAnotherHasToldNothingOfTheNumber) {
  for (int rank = 0; rank < 3; ++rank) Add(rank, 7, 0, kOpen, rank == 1 ? 2 : 1);
  log_.reported.push_back(3);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
  EXPECT_THAT(Doubt(), IsEmpty());
}

// As of a process that can't take its turn: its dump has nothing.
TEST_F(UnknownMembers, WhoToldNothingOfANumberMayBeInEachOfItsGroups) {
  for (int rank = 0; rank < 4; ++rank) Add(rank, 7, static_cast<uint32_t>(rank % 2), kOpen);
  log_.reported.insert(log_.reported.end(), {4, 6});
  Groups();
  for (const Communicator& one : log_.communicators) EXPECT_THAT(one.perhaps, ElementsAre(4, 6));
}

TEST_F(UnknownMembers, SeveralThatEachCallItOtherwiseAreByThemselves) {
  for (int rank = 0; rank < 4; ++rank) Add(rank, 7, 0, kOpen, rank < 2 ? 1 : static_cast<uint32_t>(rank));
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3)));
}

// That the number is another group's on some shows that it may be so on this one.
TEST_F(UnknownMembers, OneBesideSeveralGroupsIsByItself) {
  for (int rank = 0; rank < 5; ++rank) Add(rank, 7, rank == 4 ? 2 : static_cast<uint32_t>(rank % 2), kOpen);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4)));
}

// Tensor parallel groups that call alike: those of ranks 0 and 1, and of 2 and 3, if it is not one of all four.
TEST_F(UnknownMembers, WhereSomeHaveEndedWhatOthersAreInItMayBeTwoGroups) {
  for (const OpState last : {kEnded, kOpen})
    for (const bool lacks : {true, false}) {
      log_ = {};
      log_.communicators.push_back({"1", "", {}});
      log_.functions = {"all_reduce"};
      for (int rank = 0; rank < 4; ++rank) {
        Add(rank, 6, 0, kEnded);
        if (rank < 3 || !lacks) Add(rank, 7, 0, rank < 2 ? last : kOpen);
      }
      EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1, 2, 3)));
      EXPECT_EQ(Doubt().empty(), last != kEnded);
    }
}

TEST_F(UnknownMembers, WhatIsNotToldBeforeAnOpUnderWayHasEnded) {
  for (int rank = 0; rank < 4; ++rank)
    for (int64_t number = rank < 2 ? 8 : 7; number < 9; ++number) Add(rank, number, 0, kOpen);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(Doubt(), testing::Not(IsEmpty()));
}

TEST_F(UnknownMembers, ThatARootHasEndedShowsNoTwoGroups) {
  for (int rank = 0; rank < 3; ++rank) Add(rank, 7, 2, rank == 0 ? kEnded : kOpen);
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(Doubt(), IsEmpty());
}

TEST_F(UnknownMembers, OfOneGroupALaterCallThatDiffersIsAMismatch) {
  for (int rank = 0; rank < 3; ++rank) {
    Add(rank, 6, 0, kEnded);
    Add(rank, 7, rank == 2 ? 1 : 0, kOpen);
  }
  EXPECT_THAT(Groups(), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(Doubt(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::trace
