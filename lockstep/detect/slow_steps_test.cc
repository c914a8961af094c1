// Whoever is slow is so in more steps than chance allows, however many collectives a step has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/comm_slow.h"
#include "lockstep/detect/look_back.h"
#include "lockstep/detect/telemetry_job.h"
#include "lockstep/trace/trails.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using testing::ElementsAre;
using testing::HasSubstr;

CommDiagnosis Diagnose(std::vector<trace::TrailSnapshot> snapshots, bool live) {
  if (live) ThinForALook(snapshots, 150);
  return DiagnoseCommunication(trace::JoinTrails(std::move(snapshots)));
}

// One microbatch in a step.
synth::TelemetryShape Replicas(int ranks, double step_s, int sharded_layers = 0) {
  return {.layout = {.dp = ranks},
          .microbatches = 1,
          .forward = Seconds{step_s / 3},
          .backward = Seconds{2 * step_s / 3},
          .sharded_layers = sharded_layers};
}

TEST(SlowSteps, AreNoDrawsOfLengths) {
  struct Case {
    int ranks;
    double step_s;
    int sharded_layers;
    uint64_t seed;
  };
  for (const Case& one : {Case{4, 1, 0, 7}, Case{4, 1, 0, 13}, Case{4, 4, 0, 12}, Case{4, 8, 0, 19}, Case{4, 4, 24, 8},
                          Case{4, 8, 24, 3}, Case{4, 8, 24, 9}, Case{16, 4, 24, 15}, Case{32, 12, 24, 1}}) {
    const auto job = Take(Replicas(one.ranks, one.step_s, one.sharded_layers), "lengths:factor=0.3", 150, one.seed);
    for (const bool live : {false, true}) {
      const CommDiagnosis diagnosis = Diagnose(job, live);
      EXPECT_TRUE(diagnosis.findings.empty()) << one.ranks << " " << one.step_s << " " << TextOf(diagnosis.findings);
    }
  }
}

// Of two, the faster is the usual one in each collective.
TEST(SlowSteps, AreNoDrawsOfLengthsOfTwo) {
  for (const uint64_t seed : {144, 159, 268}) {
    const auto job = Take(Replicas(2, 0.99), "lengths:factor=0.3", 60, seed);
    for (const bool live : {false, true}) {
      const CommDiagnosis diagnosis = Diagnose(job, live);
      EXPECT_TRUE(diagnosis.findings.empty()) << seed << " " << TextOf(diagnosis.findings);
    }
  }
}

// Neither before the first few steps are over, nor of microbatches.
TEST(SlowSteps, AreNoPartsOfStepsWhereParametersAreSharded) {
  struct Case {
    cluster::Layout layout;
    int microbatches;
    double of_microbatch_s, seconds;
    uint64_t seed;
  };
  for (const Case& one : {Case{{.dp = 8}, 1, 24, 75, 102}, Case{{.dp = 8}, 16, 0.9, 150, 104},
                          Case{{.tp = 8, .dp = 4}, 8, 0.9, 150, 104}}) {
    synth::TelemetryShape shape = Replicas(1, one.of_microbatch_s, 24);
    shape.layout = one.layout;
    shape.microbatches = one.microbatches;
    const auto job = Take(shape, "lengths:factor=0.3", one.seconds, one.seed);
    for (const bool live : {false, true}) {
      const CommDiagnosis diagnosis = Diagnose(job, live);
      EXPECT_TRUE(diagnosis.findings.empty()) << one.seed << " " << TextOf(diagnosis.findings);
    }
  }
}

// Checkpoints take a quarter of the time.
TEST(SlowSteps, LieBetweenPausesToo) {
  const auto job = Take(Replicas(8, 3), "slow_rank:rank=3,factor=1.5 checkpoint:seconds=10,every=40", 150);
  for (const bool live : {false, true}) {
    const std::vector<Finding> findings = Diagnose(job, live).findings;
    ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
    EXPECT_THAT(NamesOf(findings[0]), ElementsAre("3"));
  }
}

TEST(SlowSteps, OfWhoComesAndGoesAreTold) {
  const CommDiagnosis diagnosis = Diagnose(Take(Replicas(16, 0.9), "slow_rank:rank=5,factor=1.6,every=20", 120), false);
  EXPECT_TRUE(diagnosis.findings.empty()) << TextOf(diagnosis.findings);
  EXPECT_THAT(diagnosis.too_short, HasSubstr("rank 5 was by itself for longer than the others, now and then"));
}

TEST(SlowSteps, AreTheSlowRanksWhereParametersAreSharded) {
  for (const double step_s : {1.0, 5.0})
    for (const bool live : {false, true}) {
      const auto job = Take(Replicas(16, step_s, 24), "slow_rank:rank=5,factor=1.3 lengths:factor=0.03", 150);
      const std::vector<Finding> findings = Diagnose(job, live).findings;
      ASSERT_EQ(findings.size(), 1u) << step_s << TextOf(findings);
      EXPECT_THAT(NamesOf(findings[0]), ElementsAre("5"));
      EXPECT_TRUE(findings[0].certain);
    }
}

// Of some gradients' collectives too few records are left to judge them; that there were some is told.
TEST(SlowSteps, AreToldWhereRecordsAreLost) {
  const synth::TelemetryShape shape{.layout = {.tp = 4, .dp = 32, .pp = 2}};
  std::vector<trace::TrailSnapshot> job = Take(shape, "slow_rank:rank=77,factor=1.5", 60);
  std::mt19937 chance(1);
  for (trace::TrailSnapshot& trail : job) {
    std::erase_if(trail.ended, [&](const ls_record&) { return chance() % 5 == 0; });
    trail.missed = 1;
  }
  const std::vector<Finding> findings = Diagnose(job, false).findings;
  ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
  EXPECT_THAT(NamesOf(findings[0]), ElementsAre("77"));
}

// One that stalls once, or pauses with all others, is as slow as before.
TEST(SlowSteps, AreThoseOfWhoStallsToo) {
  for (const char* beside : {"gc:share=0.02,seconds=2", "pause:from=125,seconds=5"}) {
    const auto job = Take(Replicas(8, 0.9), fmt::format("slow_rank:rank=3,factor=1.5 {}", beside), 150);
    for (const bool live : {false, true}) {
      const std::vector<Finding> findings = Diagnose(job, live).findings;
      ASSERT_EQ(findings.size(), 1u) << beside << TextOf(findings);
      EXPECT_THAT(NamesOf(findings[0]), ElementsAre("3"));
    }
  }
}

// A trend is one of steps: in a few of them there are hundreds of layers.
TEST(SlowSteps, AreNoTrendWhereTheyAreFew) {
  for (const uint64_t seed : {1, 4}) {
    const auto job = Take(Replicas(32, 12, 24), "lengths:factor=0.15", 150, seed);
    const CommDiagnosis diagnosis = Diagnose(job, false);
    EXPECT_TRUE(diagnosis.findings.empty()) << TextOf(diagnosis.findings);
  }
  const auto job = Take(Replicas(8, 1, 24), "everybody:factor=1.3,from=100", 200);
  const std::vector<Finding> findings = Diagnose(job, false).findings;
  ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
  EXPECT_EQ(findings[0].syndrome, incident::Syndrome::kJobSlow);
}

}  // namespace
}  // namespace lockstep::detect
