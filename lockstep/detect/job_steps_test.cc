#include "lockstep/detect/job_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::detect {
namespace {

using testing::ElementsAre;

// Steps of 100: tokens are exchanged forty times in each, gradients reduced in a burst at its end.
std::vector<Met> Job(int64_t steps, int burst = 2) {
  std::vector<Met> all;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < 40; ++i) all.push_back({.communicator = 0, .end_ns = 100 * step + 2 * i, .bytes = 64});
    for (int i = 0; i < burst; ++i) all.push_back({.communicator = 1, .end_ns = 100 * step + 95 + i, .bytes = 512});
  }
  return all;
}

TEST(JobSteps, LieBetweenTheRarestOfItsCollectives) {
  const JobSteps steps = FindJobSteps(Job(4));
  EXPECT_THAT(steps.ends_ns, ElementsAre(0, 95, 195, 295, 395));
  EXPECT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps.SinceNs(2), 195);
  EXPECT_EQ(steps.SinceNs(9), 0);
}

// However many buckets the gradients come in: not these are steps.
TEST(JobSteps, AreAsLongAsTheLogWhereItHasOne) {
  std::vector<Met> all = Job(1, 25);
  EXPECT_EQ(FindJobSteps(all).size(), 1u);
  all.push_back({.communicator = 0, .end_ns = 150, .bytes = 64});
  EXPECT_EQ(FindJobSteps(all).size(), 1u);
}

TEST(JobSteps, AreNotWhatLiesBetweenCheckpoints) {
  std::vector<Met> all = Job(20);
  for (const int64_t end_ns : {500, 1500}) all.push_back({.communicator = 2, .end_ns = end_ns, .bytes = 1});
  EXPECT_EQ(FindJobSteps(all).size(), 20u);
}

TEST(JobSteps, AreNotAsLongAsAPause) {
  std::vector<Met> all = Job(6);
  for (Met& one : all)
    if (one.end_ns >= 300) one.end_ns += 10'000;
  EXPECT_EQ(FindJobSteps(all).size(), 6u);
}

// Live, of what comes often the newest alone is told.
TEST(JobSteps, ReachBackForAsLongAsTheyAreTold) {
  std::vector<Met> all = Job(8);
  std::erase_if(all, [](const Met& one) { return one.communicator == 0 && one.end_ns < 600; });
  EXPECT_THAT(FindJobSteps(all).ends_ns, ElementsAre(95, 195, 295, 395, 495, 595, 695, 795));
}

// Parameters are sharded in 8 layers: gathered before each, forward and backward, and gradients reduced behind it.
std::vector<Met> Sharded(int64_t steps, uint64_t others = 32) {
  enum : uint32_t { kGather, kReduce, kNorm };
  std::vector<Met> all;
  for (int64_t begin = 0; begin < 100 * steps; begin += 100) {
    const auto meet = [&](uint32_t function, int64_t at, uint64_t bytes) {
      all.push_back({.communicator = 0, .function = function, .end_ns = begin + at, .bytes = bytes});
    };
    meet(kGather, 0, others);
    for (int64_t i = 0; i < 8; ++i) meet(kGather, 4 * i, 16);
    for (int64_t i = 0; i < 8; ++i) {
      meet(kGather, 32 + 8 * i, 16);
      meet(kReduce, 39 + 8 * i, 16);
    }
    meet(kReduce, 96, others);
    meet(kNorm, 97, 0);
  }
  return all;
}

TEST(JobSteps, LieBetweenWhatBelongsToNoLayerWhereParametersAreSharded) {
  const JobSteps steps = FindJobSteps(Sharded(6));
  EXPECT_EQ(steps.size(), 5u) << "and parts of two";
  EXPECT_EQ(steps.usual_ns, 100);
  EXPECT_EQ(FindJobSteps(Sharded(6, 16)).size(), 5u) << "as large as layers: while gathers alone go on";
}

TEST(JobSteps, LieBetweenForwardPassesWhereGradientsAreReducedMeanwhile) {
  std::vector<Met> all;
  for (int64_t step = 0; step < 6; ++step)
    for (int64_t i = 0; i < 60; ++i) all.push_back({.communicator = 0, .end_ns = 100 * step + 40 + i, .bytes = 25});
  EXPECT_EQ(FindJobSteps(all).size(), 5u) << "the first bucket's end begins the first";
}

// Tokens go to experts, each time others: none of the sizes that come up once ends steps.
TEST(JobSteps, AreNotWhatLiesBetweenSizesThatHardlyComeAgain) {
  std::vector<Met> all = Job(6);
  for (Met& one : all)
    if (one.communicator == 0) one.bytes = 1000 + static_cast<uint64_t>(one.end_ns * 7919 % 997);
  EXPECT_EQ(FindJobSteps(all).size(), 6u);
  std::erase_if(all, [](const Met& one) { return one.communicator == 1; });
  EXPECT_GE(FindJobSteps(all).size(), 6u);
}

// One replica: its tensor-parallel ranks meet evenly, and once in a step all agree on a norm; on a checkpoint, rarely.
TEST(JobSteps, LieBetweenNormsWhereAllElseComesEvenly) {
  std::vector<Met> all;
  for (int64_t at = 0; at < 4000; at += 10) all.push_back({.communicator = 0, .end_ns = at, .bytes = 1 << 20});
  for (int64_t at = 95; at < 4000; at += 100) all.push_back({.communicator = 1, .end_ns = at, .bytes = 4});
  for (int64_t at = 96; at < 4000; at += 800) all.push_back({.communicator = 2, .end_ns = at, .bytes = 1});
  const JobSteps steps = FindJobSteps(all);
  EXPECT_EQ(steps.size(), 40u);
  EXPECT_EQ(steps.usual_ns, 100);
}

// What is reduced once in a step is so by all that come in it.
TEST(JobSteps, AreNotWhatLiesBetweenLosses) {
  std::vector<Met> all;
  for (int64_t at = 95; at < 4000; at += 100) {
    all.push_back({.communicator = 0, .end_ns = at, .bytes = 1 << 20});
    all.push_back({.communicator = 0, .function = 1, .end_ns = at + 1, .bytes = 1 << 20});
  }
  for (int64_t at = 96; at < 4000; at += 1000) all.push_back({.communicator = 0, .end_ns = at, .bytes = 4});
  EXPECT_EQ(FindJobSteps(all).size(), 39u);
}

TEST(JobSteps, OfNextToNothing) {
  EXPECT_EQ(FindJobSteps({}).size(), 0u);
  EXPECT_EQ(FindJobSteps({}).SinceNs(6), 0);
  EXPECT_EQ(FindJobSteps({{.communicator = 0, .end_ns = 5}}).size(), 0u);
  EXPECT_EQ(FindJobSteps({{.communicator = 0, .end_ns = 5}, {.communicator = 0, .end_ns = 7}}).size(), 1u);
}

}  // namespace
}  // namespace lockstep::detect
