#include "lockstep/synth/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/straggler_job.h"

namespace lockstep::synth {
namespace {

using testing::DoubleNear;

trace::TracedJob Job(const JobShape& shape, const std::vector<Fault>& faults, uint64_t seed = 1) {
  return trace::BuildStragglerJob(Generate(shape, faults, seed).value(), MetaOf(shape)).value();
}

// The time of a pipeline without jitter and transfers: (microbatches + pp - 1) * (forward + backward), then the tail.
TEST(Generate, APipelineTakesItsFormula) {
  const JobShape shape{.dp = 1,
                       .pp = 4,
                       .microbatches = 8,
                       .steps = 2,
                       .transfer{0},
                       .embedding{0.02},
                       .clip{0.01},
                       .optimizer{0.02},
                       .jitter = 0,
                       .launch{0}};
  const auto job = Job(shape, {});
  EXPECT_THAT(double{job.step_times[0]}, DoubleNear((8 + 3) * 0.56 + 0.02 + 0.01 + 0.02, 1e-4));
  EXPECT_TRUE(job.counters.empty());
}

// Interleaving divides the bubble by vpp: microbatches * (f + b) + (pp - 1) * (f + b) / vpp.
TEST(Generate, InterleavingDividesTheBubble) {
  const JobShape shape{.dp = 1,
                       .pp = 4,
                       .vpp = 2,
                       .microbatches = 8,
                       .steps = 1,
                       .transfer{0},
                       .embedding{0},
                       .clip{0},
                       .optimizer{0},
                       .jitter = 0,
                       .launch{0}};
  EXPECT_THAT(double{Job(shape, {}).step_times[0]}, DoubleNear(8 * 0.56 + 3 * 0.56 / 2, 1e-4));
}

TEST(Generate, TheSameSeedGivesTheSameRows) {
  const JobShape shape{.steps = 3};
  const auto a = Job(shape, {}, 5), b = Job(shape, {}, 5), c = Job(shape, {}, 6);
  EXPECT_EQ(a.starts, b.starts);
  EXPECT_NE(a.starts, c.starts);
}

TEST(Generate, ShapesThatCanNotBeAreRefused) {
  EXPECT_EQ(Message(Generate({.dp = 0}, {}, 1).status()), "dp must be 1 to 65536, found 0");
  EXPECT_TRUE((JobShape{.dp = 127, .pp = 256, .tp = 65536}).Validate().ok());
  EXPECT_EQ(Message((JobShape{.dp = 65536, .pp = 2, .tp = 65536}).Validate()),
            "dp * pp * tp must be at most 2147483647, found 8589934592");
  EXPECT_EQ(Message((JobShape{.dp = 65536, .steps = 65536}).Validate()),
            "dp * steps must be at most 2147483647, found 4294967296");
  EXPECT_EQ(Message(Generate({.pp = 4, .vpp = 2, .microbatches = 6}, {}, 1).status()),
            "microbatches must be a multiple of pp = 4 when vpp > 1, found 6");
}

struct Case {
  const char* name;
  JobShape shape;
};

class Shapes : public testing::TestWithParam<Case> {};

// What is generated is read back as it was sampled: no delay or transfer below zero, no absent op.
TEST_P(Shapes, AreReadBack) {
  const auto job = Job(GetParam().shape, {});
  for (const trace::Counter& counter : job.counters) ADD_FAILURE() << counter.name << " " << counter.count;
  for (const float delay : job.delays) ASSERT_THAT(delay, testing::AllOf(testing::Gt(-1e-4F), testing::Lt(1e-2F)));
}

INSTANTIATE_TEST_SUITE_P(All, Shapes,
                         testing::Values(Case{"plain", {.steps = 3}}, Case{"one_stage", {.pp = 1, .steps = 3}},
                                         Case{"one_rank", {.dp = 1, .steps = 3}},
                                         Case{"alone", {.dp = 1, .pp = 1, .steps = 3}},
                                         Case{"interleaved", {.vpp = 3, .steps = 3}},
                                         Case{"overlapped", {.steps = 3, .overlapped = true}},
                                         Case{"both", {.vpp = 2, .steps = 3, .overlapped = true}},
                                         Case{"few_microbatches", {.pp = 8, .microbatches = 4, .steps = 3}}),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep::synth
