#include "lockstep/graph/op_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Letter(uint32_t op) { return std::string(1, static_cast<char>('a' + op)); }

class OpGraphTest : public testing::Test {
 protected:
  void Add(int ops) {
    for (int i = 0; i < ops; ++i) builder_.AddOp();
  }
  std::string Error() { return Message(builder_.Build({0, 1}, Letter).status()); }

  OpGraphBuilder builder_;
};

TEST_F(OpGraphTest, OpsComeBehindWhatTheyWaitFor) {
  Add(4);  // d <- c <- a, b alone
  builder_.AddDependency(3, 2);
  builder_.AddDependency(2, 0);
  builder_.AddFinal(0);
  const auto built = builder_.Build({0, 2}, Letter);
  ASSERT_TRUE(built.ok());
  const auto number = built->number;
  EXPECT_LT(number[3], number[2]);
  EXPECT_LT(number[2], number[0]);
  EXPECT_THAT(built->graph.DependenciesOf(number[0]), ElementsAre(number[2]));
  EXPECT_THAT(built->graph.DependenciesOf(number[1]), ElementsAre());
  EXPECT_THAT(built->graph.finals, ElementsAre(number[0]));
  EXPECT_EQ(built->graph.lanes(), 2U);
}

TEST_F(OpGraphTest, AGroupComesBehindWhatAnyMemberWaitsFor) {
  Add(5);  // group {a, d}; a waits for b, d for c; e waits for a
  builder_.AddGroup({0, 3}, Scope::kLane);
  builder_.AddDependency(1, 0);
  builder_.AddDependency(2, 3);
  builder_.AddDependency(0, 4);
  const auto built = builder_.Build({0, 1}, Letter);
  ASSERT_TRUE(built.ok());
  EXPECT_THAT(built->number, ElementsAre(2, 0, 1, 3, 4));
  EXPECT_TRUE(built->graph.units[2].synchronised);
  EXPECT_EQ(built->graph.units[2].count, 2U);
}

TEST_F(OpGraphTest, OpsInACircleAreNamed) {
  Add(5);  // a <- b <- c <- a, d before, e behind
  for (const auto& [before, after] : {std::pair(0, 2), {2, 1}, {1, 0}, {3, 0}, {0, 4}})
    builder_.AddDependency(static_cast<uint32_t>(before), static_cast<uint32_t>(after));
  const std::string error = Error();
  EXPECT_THAT(error, HasSubstr("wait for each other in a circle: "));
  for (const char* name : {"a", "b", "c"}) EXPECT_THAT(error.substr(error.find(": ")), HasSubstr(name));
  for (const char* name : {"d", "e"}) EXPECT_THAT(error.substr(error.find(": ")), Not(HasSubstr(name)));
}

TEST_F(OpGraphTest, AGroupWhoseMembersWaitForEachOtherIsACircle) {
  Add(3);
  builder_.AddGroup({0, 2}, Scope::kLane);
  builder_.AddDependency(0, 1);
  builder_.AddDependency(1, 2);
  EXPECT_THAT(Error(), HasSubstr("circle"));
}

TEST_F(OpGraphTest, AnOpInTwoGroupsIsRefused) {
  Add(3);
  builder_.AddGroup({0, 1}, Scope::kLane);
  builder_.AddGroup({1, 2}, Scope::kLane);
  EXPECT_EQ(Error(), "b is in two groups");
}

}  // namespace
}  // namespace lockstep::graph
