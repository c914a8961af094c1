#include "lockstep/control/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using testing::HasSubstr;

Join NodeOf(const std::string& name, int node_rank, int most = 2, int ranks = 2) {
  Join join{.name = name, .token = name + "'s token", .node_rank = node_rank, .ranks = ranks};
  join.least_nodes = join.most_nodes = most;
  return join;
}

std::string Refusal(Roster& roster, const Join& join) { return Message(roster.Admit(join, Nanos{1})); }

TEST(Roster, SeatsByRankAskedFor) {
  Roster roster("run");
  ASSERT_TRUE(roster.Admit(NodeOf("b", 1, 2, 3), Nanos{1}).ok());
  EXPECT_FALSE(roster.IsComplete(Nanos{2}));
  EXPECT_EQ(roster.Progress(), "1 of 2 nodes are here: b");
  ASSERT_TRUE(roster.Admit(NodeOf("a", 0, 2, 4), Nanos{2}).ok());
  ASSERT_TRUE(roster.IsComplete(Nanos{2}));
  const std::optional<Place> b = roster.PlaceOf("b's token");
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(b->node, 1);
  EXPECT_EQ(b->first_rank, 4);
  EXPECT_EQ(b->world_size, 7);
  EXPECT_EQ(b->nodes, 2);
}

TEST(Roster, SeatsByArrivalWhereNobodyAsked) {
  Roster roster("run");
  for (const char* name : {"x", "y", "z"}) ASSERT_TRUE(roster.Admit(NodeOf(name, name[0] == 'y' ? 0 : -1, 3), {}).ok());
  ASSERT_TRUE(roster.IsComplete({}));
  EXPECT_EQ(roster.nodes()[0].name, "y");
  EXPECT_EQ(roster.nodes()[1].name, "x");
  EXPECT_EQ(roster.nodes()[2].name, "z");
}

TEST(Roster, BeginsWithTheLeastAfterTheLastCall) {
  Roster roster("run");
  for (const char* name : {"x", "y"}) {
    Join join = NodeOf(name, name[0] == 'x' ? 0 : 2, 3);
    join.least_nodes = 2;
    ASSERT_TRUE(roster.Admit(join, Nanos{5}).ok());
  }
  EXPECT_FALSE(roster.IsComplete(Nanos{5} + ToNanos(kLastCall) - Nanos{1}));
  ASSERT_TRUE(roster.IsComplete(Nanos{5} + ToNanos(kLastCall)));
  EXPECT_EQ(roster.nodes().size(), 2u);
  EXPECT_EQ(roster.PlaceOf("y's token")->node, 1);
}

TEST(Roster, BeginsAboveWhatAnyNodeFindsOnDisk) {
  Roster roster("run");
  for (const char* name : {"x", "y"}) {
    Join join = NodeOf(name, -1);
    join.first_epoch = name[0] == 'x' ? 3 : 4;
    ASSERT_TRUE(roster.Admit(join, {}).ok());
  }
  EXPECT_EQ(roster.first_epoch(), EpochId(4));
}

TEST(Roster, RefusesByName) {
  Roster roster("run");
  ASSERT_TRUE(roster.Admit(NodeOf("a", 0), {}).ok());
  EXPECT_EQ(Refusal(roster, NodeOf("b", 0)), "two agents have --node-rank 0: node a and node b");
  EXPECT_EQ(Refusal(roster, NodeOf("b", 1, 3)), "node b says --nnodes 3, node a says --nnodes 2; give all the same");
  Join keeps = NodeOf("b", 1);
  keeps.keeps_on_disk = true;
  EXPECT_EQ(Refusal(roster, keeps), "node b has --checkpoint-dir, node a has not; give all the same");
  Join other_job = NodeOf("b", 1);
  other_job.rdzv_id = "job8";
  EXPECT_EQ(Refusal(roster, other_job),
            "node b has --rdzv-id \"job8\", node a has \"\": jobs that meet at one address are one");
  EXPECT_EQ(Refusal(roster, NodeOf("b", 2)), "node b has --node-rank 2, but --nnodes is 2");
  Join twin = NodeOf("a", 1);
  twin.token = "another";
  EXPECT_EQ(Refusal(roster, twin), "two nodes have the name a; tell them apart with --node-name");
  Join stranger = NodeOf("b", 1);
  stranger.run = "yesterday's";
  EXPECT_EQ(Refusal(roster, stranger), "node b belongs to run yesterday's, this coordinator leads run run");
}

TEST(Roster, UnderstandsOneVersionOfDifference) {
  Roster roster("run");
  Join join = NodeOf("a", 0, 3);
  for (const int difference : {-2, 2}) {
    join.version = kLinkVersion + difference;
    EXPECT_THAT(Refusal(roster, join), HasSubstr("node a speaks version"));
  }
  for (const int difference : {-1, 0, 1}) {
    join.version = kLinkVersion + difference;
    EXPECT_TRUE(roster.Admit(join, {}).ok());
  }
  EXPECT_EQ(roster.Progress(), "1 of 3 nodes are here: a") << "the same agent, asked three times";
}

TEST(Roster, KnowsThemAgain) {
  const std::vector<NodeSpec> nodes = {{"a", 2, "a's token"}, {"b", 2, "b's token"}};
  Roster roster("run", nodes);
  EXPECT_TRUE(roster.IsComplete({}));
  Join back = NodeOf("b", 1);
  back.run = "run";
  EXPECT_TRUE(roster.Admit(back, {}).ok());
  EXPECT_EQ(roster.PlaceOf("b's token")->first_rank, 2);
  EXPECT_EQ(Refusal(roster, NodeOf("c", 1)), "node c came after the job had begun with 2 nodes");
  Roster early("run");
  ASSERT_TRUE(early.Admit(NodeOf("a", 0), {}).ok());
  early.Leave("a's token");
  EXPECT_TRUE(early.Admit(NodeOf("b", 0), {}).ok()) << "the rank is free again";
}

}  // namespace
}  // namespace lockstep::control
