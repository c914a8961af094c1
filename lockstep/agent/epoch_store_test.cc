#include "lockstep/agent/epoch_store.h"

#include <gtest/gtest.h>

namespace lockstep::agent {
namespace {

RunSpec SecondNode(const std::string& coordinator, const std::string& address) {
  RunSpec spec;
  spec.node_name = "b";
  spec.place = {.node = 1, .first_rank = 1, .world_size = 2, .nodes = 2};
  spec.coordinator = coordinator;
  spec.address = address;
  return spec;
}

// 192.0.2.0/24 and 2001:db8::/32 are for examples only: no machine has such an address.
TEST(WhyOutOfReach, LoopbackOfAnotherMachine) {
  const std::string why = WhyOutOfReach(SecondNode("192.0.2.1:29400", "192.0.2.2"), "127.0.0.1");
  EXPECT_TRUE(why.starts_with("b is on another machine than node 0, whose address is 127.0.0.1: start node 0 with"))
      << why;
  EXPECT_NE(WhyOutOfReach(SecondNode("192.0.2.1:29400,[2001:db8::1]:29400", "192.0.2.2"), "::1"), "");
}

TEST(WhyOutOfReach, NotOnOneMachine) {
  for (const char* coordinator : {"127.0.0.1:29400", "192.0.2.1:29400,localhost:29400"})
    EXPECT_EQ(WhyOutOfReach(SecondNode(coordinator, "192.0.2.2"), "127.0.0.1"), "") << "by one of several ways";
  EXPECT_EQ(WhyOutOfReach(SecondNode("192.0.2.1:29400", "127.0.0.1"), "127.0.0.1"), "") << "through a tunnel";
}

TEST(WhyOutOfReach, NotAnAddressOrAStoreOfOurOwn) {
  RunSpec spec = SecondNode("192.0.2.1:29400", "192.0.2.2");
  EXPECT_EQ(WhyOutOfReach(spec, "192.0.2.3"), "");
  EXPECT_EQ(WhyOutOfReach(spec, "node0"), "");
  spec.place.node = 0;
  EXPECT_EQ(WhyOutOfReach(spec, "127.0.0.1"), "");
  EXPECT_EQ(WhyOutOfReach(SecondNode("", "node1"), "127.0.0.1"), "") << "it leads: node 0 is on its machine";
}

}  // namespace
}  // namespace lockstep::agent
