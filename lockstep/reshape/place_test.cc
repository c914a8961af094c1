#include "lockstep/reshape/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::reshape {
namespace {

using testing::HasSubstr;

std::string Dtensor(const char* place, std::vector<uint64_t> local, int rank, int world) {
  const auto placed = PlaceOf(ParseJson(place), local, rank, world);
  return placed.ok() ? Named(placed->box) : Message(placed.status());
}

// 9 rows over 4 ranks by torch.chunk: 3, 3, 3 and none.
TEST(Place, AMeshOfOneDimensionCutsByChunks) {
  constexpr char kPlace[] = R"j(["dtensor", [9, 2], "(Shard(dim=0),)", [4]])j";
  EXPECT_EQ(Dtensor(kPlace, {3, 2}, 0, 4), "[0:3, 0:2]");
  EXPECT_EQ(Dtensor(kPlace, {3, 2}, 2, 4), "[6:9, 0:2]");
  EXPECT_EQ(Dtensor(kPlace, {0, 2}, 3, 4), "[9:9, 0:2]");
  EXPECT_THAT(Dtensor(kPlace, {2, 2}, 0, 4), HasSubstr("does not fit its shape [2, 2]"));
}

TEST(Place, ALargerMeshCountsItsLastDimensionFastest) {
  constexpr char kPlace[] = R"j(["dtensor", [4, 6], "(Shard(dim=0), Shard(dim=1))", [2, 3]])j";
  EXPECT_EQ(Dtensor(kPlace, {2, 2}, 4, 6), "[2:4, 2:4]");
  EXPECT_EQ(Dtensor(R"j(["dtensor", [4], "(Replicate(), Shard(dim=0))", [2, 2]])j", {2}, 3, 4), "[2:4]");
  EXPECT_EQ(Dtensor(R"j(["dtensor", [8], "(Shard(dim=0), Shard(dim=0))", [2, 2]])j", {2}, 2, 4), "[4:6]");
}

// DeviceMesh("cpu", [[0, 2], [1, 3]]): rank 1 stands at (1, 0). A mesh of ranks 1 and 3 alone is known, too.
TEST(Place, WhereARankStandsIsAsItWasNoted) {
  EXPECT_EQ(Dtensor(R"j(["dtensor", [4, 4], "(Shard(dim=0), Shard(dim=1))", [2, 2], [1, 0]])j", {2, 2}, 1, 4),
            "[2:4, 0:2]");
  EXPECT_EQ(Dtensor(R"j(["dtensor", [4], "(Shard(dim=0),)", [2], [1]])j", {2}, 3, 4), "[2:4]");
}

TEST(Place, WhatCantBeToldIsRefused) {
  for (const char* outside : {"[2]", "[]", "[0, 0]"}) {
    const std::string place = fmt::format(R"j(["dtensor", [4], "(Shard(dim=0),)", [2], {}])j", outside);
    EXPECT_THAT(Dtensor(place.c_str(), {2}, 0, 2), HasSubstr("can't be told apart")) << outside;
  }
  EXPECT_THAT(Dtensor(R"j(["dtensor", [4], "(Partial(sum),)", [2]])j", {4}, 0, 2), HasSubstr("can't be told apart"));
  EXPECT_THAT(Dtensor(R"j(["dtensor", [4], "(Shard(dim=0),)", [2]])j", {2}, 0, 4), HasSubstr("can't be told apart"));
  EXPECT_THAT(Dtensor(R"j(["dtensor", [4], "(Shard(dim=1),)", [2]])j", {2}, 0, 2), HasSubstr("can't be told apart"));
  EXPECT_THAT(Dtensor(R"j(["other"])j", {2}, 0, 2), HasSubstr("not known"));
  EXPECT_THAT(Dtensor(R"j(["shard", [4], [3], [2]])j", {2}, 0, 2), HasSubstr("does not fit"));
  EXPECT_THAT(Dtensor(R"j(["shard", [4]])j", {2}, 0, 2), HasSubstr("its place"));
  EXPECT_EQ(Dtensor(R"j(["shard", [4], [2], [2]])j", {2}, 0, 2), "[2:4]");
}

}  // namespace
}  // namespace lockstep::reshape
