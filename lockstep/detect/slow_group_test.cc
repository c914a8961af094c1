// Hosts all of whose ranks are slow alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/look_back.h"
#include "lockstep/detect/telemetry_job.h"
#include "lockstep/trace/trails.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Finding> Diagnose(const synth::TelemetryShape& shape, const std::string& faults, double seconds = 200) {
  return DiagnoseCommunication(trace::JoinTrails(Take(shape, faults, seconds))).findings;
}

const synth::TelemetryShape kHosts{.layout = {.tp = 8, .dp = 8}, .forward = Seconds{0.01}, .backward = Seconds{0.02}};

TEST(SlowGroups, AreNamedWithTheirPriceLive) {
  for (const auto& [tp, dp] : {std::pair{8, 8}, {2, 16}}) {
    const synth::TelemetryShape shape{
        .layout = {.tp = tp, .dp = dp}, .microbatches = 16, .forward = Seconds{0.03}, .backward = Seconds{0.06}};
    std::vector<trace::TrailSnapshot> snapshots = Take(shape, SlowRanks(8, 16, 1.3), 200);
    const double lost = 1 - StepsPerSecond(snapshots) / StepsPerSecond(Take(shape, {}, 200));
    ThinForALook(snapshots, 150);
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
    EXPECT_EQ(NamesOf(findings[0]), std::vector<std::string>{"node1"});
    EXPECT_NEAR(findings[0].price.share, lost, 0.15 * lost) << TextOf(findings);
  }
}

// Of what groups take one collective of 4 to 32 is told, of that in which they meet every second, and few steps: the
// slow ones' last ones of a step begin after others have come to where they meet.
TEST(SlowGroups, AreNamedLiveByFewCollectivesAndFewSteps) {
  struct Case {
    cluster::Layout layout;
    int microbatches;
    double forward, factor;
  };
  for (const Case& one : {Case{{.tp = 2, .dp = 8}, 4, 0.03, 1.3}, Case{{.tp = 2, .dp = 8}, 12, 0.03, 1.2},
                          Case{{.tp = 2, .dp = 8}, 16, 0.1, 1.3}, Case{{.tp = 2, .dp = 8, .pp = 2}, 4, 0.01, 1.5},
                          Case{{.tp = 2, .dp = 8, .pp = 2}, 8, 0.01, 1.3}}) {
    const synth::TelemetryShape shape{.layout = one.layout,
                                      .microbatches = one.microbatches,
                                      .forward = Seconds{one.forward},
                                      .backward = Seconds{2 * one.forward}};
    std::vector<trace::TrailSnapshot> snapshots = Take(shape, SlowRanks(8, 16, one.factor), 150);
    ThinForALook(snapshots, 150);
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << one.microbatches << " " << one.forward << " " << TextOf(findings);
    EXPECT_THAT(NamesOf(findings[0]), ElementsAre("node1"));
  }
}

// In 7 or 8 steps one of two replicas whose steps differ is late in each, and in the mean by 19 and 35 %, as it
// happens.
TEST(SlowGroups, AreNoneWhereChanceIsEnough) {
  const synth::TelemetryShape shape{
      .layout = {.tp = 8, .dp = 2}, .microbatches = 8, .forward = Seconds{0.2}, .backward = Seconds{0.4}};
  for (const uint64_t seed : {78, 532}) {
    std::vector<trace::TrailSnapshot> snapshots = Take(shape, "lengths:factor=0.3", 42, seed);
    ThinForALook(snapshots, 150);
    const CommDiagnosis diagnosis = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots)));
    EXPECT_TRUE(diagnosis.findings.empty()) << TextOf(diagnosis.findings);
    EXPECT_EQ(diagnosis.too_short, "");
  }
}

// Experts exchange tokens in each microbatch, so its ranks are late in dozens of collectives of a step: by one draw of
// its lengths.
TEST(SlowGroups, AreNoneWhereEachOfAStepsExchangesTellsOfItsLengths) {
  struct Case {
    cluster::Layout layout;
    int microbatches;
    double factor;
  };
  for (const Case& one : {Case{{.tp = 4, .ep = 4, .dp = 4}, 16, 0.3}, Case{{.tp = 2, .ep = 4, .dp = 8}, 32, 0.2},
                          Case{{.tp = 8, .ep = 2, .dp = 2}, 8, 0.3}}) {
    const synth::TelemetryShape shape{
        .layout = one.layout, .microbatches = one.microbatches, .forward = Seconds{0.1}, .backward = Seconds{0.2}};
    for (const uint64_t seed : {0, 1, 2}) {
      std::vector<trace::TrailSnapshot> snapshots =
          Take(shape, fmt::format("lengths:factor={}", one.factor), 100, seed);
      const CommDiagnosis diagnosis = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots)));
      EXPECT_TRUE(diagnosis.findings.empty()) << one.microbatches << " " << seed << TextOf(diagnosis.findings);
    }
  }
}

// A step takes 6 s or more: in a part of the newest one they are late in dozens of exchanges of tokens.
TEST(SlowGroups, AreNoneThatAreSlowForAFewSeconds) {
  const synth::TelemetryShape shape{
      .layout = {.tp = 8, .ep = 4, .dp = 8}, .microbatches = 16, .forward = Seconds{0.15}, .backward = Seconds{0.225}};
  std::string faults;
  for (int rank = 8; rank < 16; ++rank) faults += fmt::format("slow_rank:rank={},factor=1.5,from=196 ", rank);
  const std::vector<Finding> findings = Diagnose(shape, faults);
  EXPECT_TRUE(findings.empty()) << TextOf(findings);
}

TEST(SlowGroups, AreNamedWhereTheyExchangeTokens) {
  const synth::TelemetryShape shape{
      .layout = {.tp = 4, .ep = 4, .dp = 8}, .microbatches = 8, .forward = Seconds{0.03}, .backward = Seconds{0.06}};
  for (const bool live : {false, true}) {
    std::vector<trace::TrailSnapshot> snapshots = Take(shape, SlowRanks(8, 16, 1.3), 150);
    if (live) ThinForALook(snapshots, 150);
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
    EXPECT_THAT(NamesOf(findings[0]), ElementsAre("node1"));
  }
}

// Each of its ranks is late by itself too where, as with the optimizer, the next collective is one of others.
TEST(SlowGroups, AreNamedInPlaceOfEachOfTheirRanks) {
  const synth::TelemetryShape shape{.layout = {.tp = 8, .dp = 8}, .forward = Seconds{0.01}, .backward = Seconds{0.02}};
  std::vector<trace::TrailSnapshot> snapshots = Take(shape, SlowRanks(8, 16, 1.5), 200);
  const double lost = 1 - StepsPerSecond(snapshots) / StepsPerSecond(Take(shape, {}, 200));
  const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
  ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
  EXPECT_EQ(NamesOf(findings[0]), std::vector<std::string>{"node1"});
  EXPECT_NEAR(findings[0].price.share, lost, 0.35 * lost);
  EXPECT_TRUE(findings[0].price.at_least);
}

// It costs the job more than the rank does.
TEST(SlowGroups, AreNamedBesideASlowRank) {
  const std::vector<Finding> findings = Diagnose(kHosts, SlowRanks(8, 16, 1.5) + "slow_rank:rank=30,factor=1.3");
  ASSERT_EQ(findings.size(), 2u) << TextOf(findings);
  EXPECT_THAT(NamesOf(findings[0]), ElementsAre("node1"));
  EXPECT_THAT(NamesOf(findings[1]), ElementsAre("30"));
  EXPECT_GT(findings[0].price.share, findings[1].price.share);
}

// Tensor-parallel groups rest for as long, while gradients are reduced, as replicas do while all compute.
TEST(SlowGroups, AreNamedWhereStepsAreMostlyOfGradients) {
  const synth::TelemetryShape shape{
      .layout = {.tp = 8, .dp = 4}, .microbatches = 4, .forward = Seconds{0.01}, .backward = Seconds{0.02}};
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<trace::TrailSnapshot> snapshots =
        Take(shape, SlowRanks(0, 8, 1.5) + "slow_rank:rank=17,factor=1.5", 150, seed);
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 2u) << seed << TextOf(findings);
    EXPECT_THAT(NamesOf(findings[0]), ElementsAre("node0"));
    EXPECT_THAT(NamesOf(findings[1]), ElementsAre("17"));
  }
}

TEST(SlowGroups, AreNamedBesideTheSlowestOfTheirRanks) {
  const std::vector<Finding> findings =
      Diagnose(kHosts, SlowRanks(8, 9, 1.5) + SlowRanks(9, 10, 1.7) + SlowRanks(10, 16, 1.5));
  ASSERT_EQ(findings.size(), 2u) << TextOf(findings);
  EXPECT_THAT(NamesOf(findings[0]), ElementsAre("node1"));
  EXPECT_THAT(NamesOf(findings[1]), ElementsAre("9"));
}

// The other stages of its pipelines wait for it in receives, and are late with their gradients.
TEST(SlowGroups, AreNamedWithoutThoseThatWaitForThem) {
  for (const auto& [tp, dp, pp] : {std::tuple{2, 8, 2}, {4, 4, 4}})
    for (const int host : {0, 1}) {
      const synth::TelemetryShape shape{.layout = {.tp = tp, .dp = dp, .pp = pp},
                                        .microbatches = 12,
                                        .forward = Seconds{0.03},
                                        .backward = Seconds{0.06}};
      const std::vector<Finding> findings = Diagnose(shape, SlowRanks(8 * host, 8 * host + 8, 1.5));
      ASSERT_EQ(findings.size(), 1u) << pp << " " << host << TextOf(findings);
      EXPECT_THAT(NamesOf(findings[0]), ElementsAre("node" + std::to_string(host)));
    }
}

// Ranks meet in one group and then in another: who waits for a slow one in the first comes late to the second, where
// others have come before it.
TEST(SlowGroups, AreNotThoseWhoWaitForASlowRank) {
  struct Case {
    cluster::Layout layout;
    int ranks_per_host, slow;
  };
  for (const Case& one : {Case{{.tp = 2, .cp = 2, .dp = 4}, 2, 5}, Case{{.tp = 2, .cp = 2, .dp = 6}, 8, 19},
                          Case{{.tp = 4, .cp = 2, .dp = 2}, 8, 3}, Case{{.cp = 2, .dp = 6}, 4, 11},
                          Case{{.tp = 2, .cp = 4, .dp = 2, .pp = 2}, 8, 6}})
    for (const double factor : {1.3, 2.0})
      for (const bool live : {false, true}) {
        const synth::TelemetryShape shape{.layout = one.layout, .ranks_per_host = one.ranks_per_host, .jitter = 0.02};
        std::vector<trace::TrailSnapshot> snapshots = Take(shape, SlowRanks(one.slow, one.slow + 1, factor), 200);
        if (live) ThinForALook(snapshots, 150);
        const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
        ASSERT_EQ(findings.size(), 1u) << one.slow << " " << factor << TextOf(findings);
        EXPECT_THAT(NamesOf(findings[0]), ElementsAre(std::to_string(one.slow)));
      }
}

TEST(SlowGroups, AreNamedWhereTheyMeetInSeveralGroups) {
  const synth::TelemetryShape shape{.layout = {.tp = 2, .cp = 2, .dp = 4}, .ranks_per_host = 4, .jitter = 0.02};
  const std::vector<Finding> host = Diagnose(shape, SlowRanks(0, 4, 1.3)), pair = Diagnose(shape, SlowRanks(4, 6, 1.3));
  ASSERT_EQ(host.size(), 1u) << TextOf(host);
  EXPECT_THAT(NamesOf(host[0]), ElementsAre("node0"));
  ASSERT_EQ(pair.size(), 1u) << TextOf(pair);
  EXPECT_THAT(NamesOf(pair[0]), ElementsAre("4", "5"));
}

// What is lost of one group is made up for where it next meets others.
TEST(SlowGroups, AreNamedWhereAFewRecordsAreLost) {
  const synth::TelemetryShape shape{
      .layout = {.tp = 4, .cp = 2, .dp = 3}, .ranks_per_host = 4, .optimizer = Seconds{0}, .jitter = 0.1};
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    std::vector<trace::TrailSnapshot> snapshots = Take(shape, SlowRanks(16, 20, 2), 300);
    std::mt19937 chance(seed);
    for (trace::TrailSnapshot& snapshot : snapshots)
      std::erase_if(snapshot.ended, [&](const ls_record&) { return chance() % 4000 == 0; });
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << seed << TextOf(findings);
    EXPECT_THAT(NamesOf(findings[0]), ElementsAre("node4"));
  }
}

// Rank 13 waits for the others of its host in each microbatch, and is as late as they are where replicas meet.
TEST(SlowGroups, AreNamedWithoutThoseOfThemThatAreWell) {
  const synth::TelemetryShape shape{.layout = {.tp = 4, .dp = 8}, .ranks_per_host = 4};
  const std::vector<Finding> findings = Diagnose(shape, SlowRanks(12, 13, 1.3) + SlowRanks(14, 16, 1.3));
  ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
  EXPECT_THAT(NamesOf(findings[0]), ElementsAre("12", "14", "15"));
}

TEST(SlowGroups, AreNotKnownOfAFewSteps) {
  const synth::TelemetryShape shape{.layout = {.tp = 8, .dp = 8}, .microbatches = 12};
  const CommDiagnosis diagnosis = DiagnoseCommunication(trace::JoinTrails(Take(shape, "", 32)));
  EXPECT_TRUE(diagnosis.findings.empty()) << TextOf(diagnosis.findings);
  EXPECT_THAT(diagnosis.too_short, HasSubstr("all ranks of a host are slow can't be told of fewer than 6"));
}

// In each step another rank is slow: it is so for most of the time that is judged where steps take long.
TEST(SlowRanks, AreNotKnownOfFewSteps) {
  const synth::TelemetryShape shape{
      .layout = {.tp = 2, .dp = 8}, .microbatches = 16, .forward = Seconds{0.5}, .backward = Seconds{1}};
  const CommDiagnosis diagnosis = DiagnoseCommunication(trace::JoinTrails(Take(shape, "rotating:factor=1.5", 40)));
  EXPECT_TRUE(diagnosis.findings.empty()) << TextOf(diagnosis.findings);
  EXPECT_THAT(diagnosis.too_short, HasSubstr("can't be told of less than"));
}

TEST(SlowRanks, AreNamedLiveHoweverLongAStepTakes) {
  const synth::TelemetryShape shape{
      .layout = {.tp = 2, .dp = 8}, .microbatches = 16, .forward = Seconds{0.5}, .backward = Seconds{1}};
  std::vector<trace::TrailSnapshot> snapshots = Take(shape, SlowRanks(5, 6, 1.3), 400);
  ThinForALook(snapshots, 150);
  const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
  ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
  EXPECT_THAT(NamesOf(findings[0]), ElementsAre("5"));
}

}  // namespace
}  // namespace lockstep::detect
