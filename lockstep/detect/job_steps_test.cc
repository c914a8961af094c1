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

TEST(JobSteps, OfNextToNothing) {
  EXPECT_EQ(FindJobSteps({}).size(), 0u);
  EXPECT_EQ(FindJobSteps({}).SinceNs(6), 0);
  EXPECT_EQ(FindJobSteps({{.communicator = 0, .end_ns = 5}}).size(), 0u);
  EXPECT_EQ(FindJobSteps({{.communicator = 0, .end_ns = 5}, {.communicator = 0, .end_ns = 7}}).size(), 1u);
}

}  // namespace
}  // namespace lockstep::detect
