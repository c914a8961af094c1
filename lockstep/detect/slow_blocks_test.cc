#include "lockstep/detect/slow_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace lockstep::detect {

void PrintTo(const Block& block, std::ostream* out) {
  for (const std::string& node : block.nodes) *out << node << " ";
  *out << static_cast<int>(block.crossing);
}

namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr int kNodes = 8;

const std::map<int, std::string>& Hosts() {
  static const auto* const hosts = [] {
    auto* all = new std::map<int, std::string>;
    for (int rank = 0; rank < kNodes; ++rank) (*all)[rank] = "n" + std::to_string(rank);
    return all;
  }();
  return *hosts;
}

using IsSlow = std::function<bool(int from, int to)>;

// A rank on each node. Each sends to each other one, where `exists`.
std::vector<Block> Find(const IsSlow& slow, const IsSlow& exists = [](int, int) { return true; }) {
  Ways ways;
  for (int from = 0; from < kNodes; ++from)
    for (int to = 0; to < kNodes; ++to) {
      if (from == to || !exists(from, to)) continue;
      const Way way{from, to, 0};
      if (slow(from, to))
        ways.slow[way] = {1, 10, 0.1, 20};
      else
        ways.fine[way] = 20;
    }
  return FindBlocks(ways, Hosts());
}

auto Is(const std::set<std::string>& nodes, Crossing crossing) {
  return testing::AllOf(testing::Field(&Block::nodes, nodes), testing::Field(&Block::crossing, crossing));
}

bool InLeaf(int node) { return node == 2 || node == 3; }

TEST(Blocks, ALeafSlowInEitherDirectionOrBoth) {
  EXPECT_THAT(Find([](int from, int to) { return InLeaf(from) && !InLeaf(to); }),
              ElementsAre(Is({"n2", "n3"}, Crossing::kOut)));
  EXPECT_THAT(Find([](int from, int to) { return InLeaf(to) && !InLeaf(from); }),
              ElementsAre(Is({"n2", "n3"}, Crossing::kIn)));
  EXPECT_THAT(Find([](int from, int to) { return InLeaf(from) != InLeaf(to); }),
              ElementsAre(Is({"n2", "n3"}, Crossing::kBoth)));
}

TEST(Blocks, ANodeOrALinkIsNone) {
  EXPECT_THAT(Find([](int from, int /*to*/) { return from == 2; }), IsEmpty());
  EXPECT_THAT(Find([](int from, int to) { return from == 2 && to == 3; }), IsEmpty());
  EXPECT_THAT(Find([](int /*from*/, int /*to*/) { return false; }), IsEmpty());
}

TEST(Blocks, OneHidesNoOtherFault) {
  const IsSlow leaf = [](int from, int to) { return InLeaf(from) && !InLeaf(to); };
  EXPECT_THAT(Find([&](int from, int to) { return leaf(from, to) || (from == 0 && to == 1); }),
              ElementsAre(Is({"n2", "n3"}, Crossing::kOut)));
  const auto in_other = [](int node) { return node == 5 || node == 6; };
  EXPECT_THAT(Find([&](int from, int to) { return leaf(from, to) || (in_other(from) && !in_other(to)); }),
              UnorderedElementsAre(Is({"n2", "n3"}, Crossing::kOut), Is({"n5", "n6"}, Crossing::kOut)));
}

// Two rings, 0 1 2 ... and 0 2 4 6 1 3 5 7, of which 4 to 6, 5 to 6 and 5 to 7 are slow.
TEST(Blocks, WhatSendsAndWhatReceivesMayBeEquallyGood) {
  const auto exists = [](int from, int to) {
    return to == (from + 1) % kNodes || (from + 2 == to) || (from == 6 && to == 1) || (from == 7 && to == 0);
  };
  EXPECT_THAT(Find([](int from, int to) { return (from == 4 || from == 5) && to >= 6; }, exists),
              UnorderedElementsAre(Is({"n4", "n5"}, Crossing::kOut), Is({"n6", "n7"}, Crossing::kIn)));
}

TEST(Blocks, WithoutTheNamesOfHostsThereAreNone) {
  Ways ways;
  ways.slow[{0, 1, 0}] = ways.slow[{0, 2, 0}] = {1, 10, 0.1, 20};
  EXPECT_THAT(FindBlocks(ways, {}), IsEmpty());
  EXPECT_THAT(FindBlocks(ways, {{0, "n0"}, {1, "n1"}}), IsEmpty());
}

}  // namespace
}  // namespace lockstep::detect
