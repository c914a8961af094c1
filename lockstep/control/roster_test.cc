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
  const Place b = roster.PlaceOf("b's token");
  EXPECT_EQ(b.node, 1);
  EXPECT_EQ(b.first_rank, 4);
  EXPECT_EQ(b.world_size, 7);
  EXPECT_EQ(b.nodes, 2);
}

TEST(Roster, SeatsByArrivalWhereNobodyAsked) {
  Roster roster("run");
  for (const char* name : {"x", "y", "z"}) {
    Join join = NodeOf(name, name[0] == 'y' ? 0 : -1, 3);
    join.job = join.name + "'s job";
    join.entry = "train.py";
    ASSERT_TRUE(roster.Admit(join, {}).ok());
  }
  ASSERT_TRUE(roster.IsComplete({}));
  EXPECT_EQ(roster.nodes()[0].name, "y");
  EXPECT_EQ(roster.job(), "y's job");
  EXPECT_EQ(roster.entry(), "train.py");
  EXPECT_EQ(roster.nodes()[1].name, "x");
  EXPECT_EQ(roster.nodes()[2].name, "z");
}

TEST(Roster, BeginsWithTheLeastAfterTheLastCall) {
  Roster roster("run");
  for (const char* name : {"x", "y"}) {
    Join join = NodeOf(name, name[0] == 'x' ? 0 : 2, 3);
    join.least_nodes = 2;
    EXPECT_FALSE(roster.HasEnough());
    ASSERT_TRUE(roster.Admit(join, Nanos{5}).ok());
  }
  EXPECT_TRUE(roster.HasEnough());
  EXPECT_FALSE(roster.IsComplete(Nanos{5} + ToNanos(kLastCall) - Nanos{1}));
  ASSERT_TRUE(roster.IsComplete(Nanos{5} + ToNanos(kLastCall)));
  EXPECT_EQ(roster.nodes().size(), 2u);
  EXPECT_EQ(roster.PlaceOf("y's token").node, 1);
}

TEST(Roster, BeginsAboveWhatAnyNodeFindsOnDisk) {
  Roster roster("run");
  for (const char* name : {"x", "y"}) {
    Join join = NodeOf(name, -1);
    join.first_epoch = name[0] == 'x' ? 3 : 4;
    ASSERT_TRUE(roster.Admit(join, {}).ok());
  }
  ASSERT_TRUE(roster.IsComplete({}));
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
  Roster roster("run", nodes, Expected{});
  EXPECT_TRUE(roster.IsComplete({}));
  Join back = NodeOf("b", 1);
  back.run = "run";
  EXPECT_TRUE(roster.Admit(back, {}).ok());
  EXPECT_EQ(roster.PlaceOf("b's token").first_rank, 2);
  EXPECT_EQ(Refusal(roster, NodeOf("c", 1)), "node c came after the job had begun with 2 nodes");
  Roster early("run");
  ASSERT_TRUE(early.Admit(NodeOf("a", 0), {}).ok());
  early.Leave("a's token");
  EXPECT_TRUE(early.Admit(NodeOf("b", 0), {}).ok()) << "the rank is free again";
}

TEST(Roster, TheCoordinatorMaySayHowManyNodes) {
  Roster roster("run", {.least_nodes = 2, .most_nodes = 2});
  EXPECT_EQ(Refusal(roster, NodeOf("a", 0, 3)),
            "node a says --nnodes 3, the coordinator says --nnodes 2; give both the same");
  EXPECT_EQ(Refusal(roster, NodeOf("a", 2, 0)), "node a has --node-rank 2, but --nnodes is 2");
  ASSERT_TRUE(roster.Admit(NodeOf("a", 0, 2), {}).ok());
  EXPECT_EQ(roster.Progress(), "1 of 2 nodes are here: a");
  Roster other("run", {.least_nodes = 2, .most_nodes = 2});
  for (const char* name : {"x", "y"}) ASSERT_TRUE(other.Admit(NodeOf(name, -1, 0), {}).ok());
  EXPECT_TRUE(other.IsComplete({}));
  Roster mixed("run", {.least_nodes = 2, .most_nodes = 2});
  ASSERT_TRUE(mixed.Admit(NodeOf("x", -1, 0), {}).ok());
  EXPECT_EQ(Refusal(mixed, NodeOf("y", -1, 2)), "") << "x leaves it to the coordinator, and y says the same as that";
  Roster knows_nothing("run");
  EXPECT_EQ(Refusal(knows_nothing, NodeOf("a", 0, 0)),
            "node a leaves the number of nodes to the coordinator, which was given none: say --nnodes there");
}

// Two nodes, and a standby s.
Roster WithStandby() {
  Roster roster("run", {.least_nodes = 2, .most_nodes = 2, .standbys = 1});
  for (const char* name : {"a", "b"}) EXPECT_TRUE(roster.Admit(NodeOf(name, -1, 0), {}).ok());
  EXPECT_TRUE(roster.IsComplete({}));
  EXPECT_TRUE(roster.Admit(NodeOf("s", -1, 0), {}).ok());
  return roster;
}

TEST(Roster, WhoComesLaterStandsBy) {
  Roster roster = WithStandby();
  const Place place = roster.PlaceOf("s's token");
  EXPECT_EQ(place.node, kStandby);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_TRUE(roster.Admit(NodeOf("s", -1, 0), {}).ok()) << "the same one again";
  EXPECT_EQ(Refusal(roster, NodeOf("t", -1, 0)), "node t came after the job had begun with 2 nodes and 1 standbys");
  Join twin = NodeOf("a", -1, 0);
  twin.token = "another";
  EXPECT_EQ(Refusal(roster, twin), "two nodes have the name a; tell them apart with --node-name");
  roster.Leave("s's token");
  EXPECT_EQ(Refusal(roster, NodeOf("t", -1, 0, 3)),
            "node t has 3 ranks, and no node of this job has as many: it could take no place");
  EXPECT_TRUE(roster.Admit(NodeOf("t", -1, 0), {}).ok()) << "there is room again";
}

TEST(Roster, AStandbyThatIsNotFitFillsNoPlace) {
  Roster roster = WithStandby();
  std::string unfit = "s's token";
  roster.AskWhoIsFit([&](const NodeSpec& standby) { return standby.token != unfit; });
  EXPECT_TRUE(roster.Admit(NodeOf("t", -1, 0), {}).ok());
  EXPECT_EQ(Refusal(roster, NodeOf("u", -1, 0)), "node u came after the job had begun with 2 nodes and 1 standbys");
  unfit = "";
  EXPECT_EQ(Refusal(roster, NodeOf("s", -1, 0)), "node s came after the job had begun with 2 nodes and 1 standbys")
      << "it is fit again, and one too many, once it joins anew";
}

// Its machine was started anew, and waits for the place that it had.
TEST(Roster, WhoStandsByMayHaveTheNameOfANodeThatIsLost) {
  Roster roster = WithStandby();
  roster.Leave("s's token");
  Join again = NodeOf("b", -1, 0);
  again.token = "b's new token";
  EXPECT_THAT(Refusal(roster, again), HasSubstr("two nodes have the name b"));
  roster.AskWhoAttends([](int node) { return node == 0; });
  EXPECT_EQ(Refusal(roster, again), "");
  roster.Seat(1, {"b", 2, "b's new token"}, "standby b has its place");
  EXPECT_EQ(roster.PlaceOf("b's new token").node, 1);
}

TEST(Roster, WhoStandsByIsOfTheSameJob) {
  Roster roster = WithStandby();
  roster.Leave("s's token");
  Join other = NodeOf("t", -1, 0);
  other.rdzv_id = "bert";
  EXPECT_THAT(Refusal(roster, other), HasSubstr("node t has --rdzv-id \"bert\""));
  Join disk = NodeOf("t", -1, 0);
  disk.keeps_on_disk = true;
  EXPECT_THAT(Refusal(roster, disk), HasSubstr("node t has --checkpoint-dir"));
  Roster resumed("run", {{"a", 2, "a's token"}}, {.standbys = 1});
  ASSERT_TRUE(resumed.Admit(NodeOf("a", -1, 0), {}).ok());
  EXPECT_THAT(Refusal(resumed, other), HasSubstr("node t has --rdzv-id \"bert\"")) << "its nodes say what job it is";
}

TEST(Roster, WhosePlaceIsTakenIsRefusedForGood) {
  Roster roster = WithStandby();
  roster.Seat(1, {"s", 2, "s's token"}, "standby s has its place");
  EXPECT_EQ(roster.PlaceOf("s's token").node, 1);
  EXPECT_EQ(roster.PlaceOf("s's token").first_rank, 2);
  EXPECT_EQ(Refusal(roster, NodeOf("b", -1, 0)), "node b is out of this job: standby s has its place");
  Join anew = NodeOf("b", -1, 0);
  anew.token = "mended and started anew";
  EXPECT_TRUE(roster.Admit(anew, {}).ok()) << "as a standby";
  EXPECT_EQ(roster.PlaceOf(anew.token).node, kStandby);
}

}  // namespace
}  // namespace lockstep::control
