// Planted faults are named, first the costliest, and nothing else; the gain is what an undisturbed job of the same seed
// says.
#include "lockstep/explain/causes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/explain/report.h"
#include "lockstep/explain/sample.h"
#include "lockstep/synth/job.h"
#include "lockstep/trace/straggler_job.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::JobShape;
using testing::ElementsAre;

constexpr int kSeeds = 20;

struct Answer {
  std::vector<Cause> causes;
  double slowdown = 0;
  double step_s = 0;

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    names.reserve(causes.size());
    for (const Cause& cause : causes) names.emplace_back(CauseName(cause.kind));
    return names;
  }
};

Answer Explain(const JobShape& shape, const std::vector<Fault>& faults, uint64_t seed, int threads = 1) {
  const auto job = trace::BuildStragglerJob(synth::Generate(shape, faults, seed).value(), synth::MetaOf(shape),
                                            static_cast<size_t>(threads))
                       .value();
  const WhatIf analysis(job, threads);
  return {FindCauses(job, analysis).found, analysis.slowdown(), Mean(analysis.measured())};
}

struct Case {
  std::string name;
  JobShape shape;
  std::vector<Fault> faults;
  bool exact_gain = true;  // mending gives back what the fault took
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class Planted : public testing::TestWithParam<Case> {};

TEST_P(Planted, IsTheSameOnAnyNumberOfThreads) {
  const auto& [name, shape, faults, exact_gain] = GetParam();
  const Answer one = Explain(shape, faults, 1), three = Explain(shape, faults, 1, 3);
  EXPECT_EQ(one.slowdown, three.slowdown);
  ASSERT_EQ(one.Names(), three.Names());
  for (size_t i = 0; i < one.causes.size(); ++i) {
    EXPECT_EQ(one.causes[i].gain_s, three.causes[i].gain_s);
    EXPECT_EQ(one.causes[i].evidence, three.causes[i].evidence);
  }
}

TEST_P(Planted, IsNamedInEverySeed) {
  const auto& [name, shape, faults, exact_gain] = GetParam();
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Answer answer = Explain(shape, faults, seed), healthy = Explain(shape, {}, seed);
    std::vector<std::string> expected;
    expected.reserve(faults.size());
    for (const Fault& fault : faults) expected.emplace_back(synth::FaultKindName(fault.kind));
    ASSERT_THAT(answer.Names(), testing::UnorderedElementsAreArray(expected))
        << "seed " << seed << ", S = " << answer.slowdown;
    for (size_t i = 1; i < answer.causes.size(); ++i) EXPECT_GE(answer.causes[i - 1].gain_s, answer.causes[i].gain_s);
    for (const Cause& cause : answer.causes)
      for (const Fault& fault : faults) {
        if (CauseName(cause.kind) != std::string(synth::FaultKindName(fault.kind))) continue;
        EXPECT_EQ(cause.suspects.empty(), fault.kind == FaultKind::kSequenceLength);
        if (cause.suspects.empty()) continue;
        const CauseSuspect& suspect = cause.suspects[0];
        if (fault.kind == FaultKind::kGc) continue;  // of the workers with pauses any may come first
        EXPECT_EQ(suspect.dp.value_or(fault.dp), fault.dp) << "seed " << seed;
        EXPECT_EQ(suspect.stage.value_or(fault.stage), fault.stage) << "seed " << seed;
        if (suspect.first_step) {
          EXPECT_NEAR(static_cast<double>(*suspect.first_step), fault.first_step, 1) << "seed " << seed;
          EXPECT_NEAR(static_cast<double>(*suspect.last_step), std::min(fault.last_step, shape.steps - 1), 1)
              << "seed " << seed;
        }
      }
    if (!exact_gain) continue;
    double gain = 0;
    for (const Cause& cause : answer.causes) gain += cause.gain_s;
    EXPECT_NEAR(gain, answer.step_s - healthy.step_s, 0.03 * (answer.step_s - healthy.step_s)) << "seed " << seed;
  }
}

const JobShape kPlain{.dp = 4, .pp = 4};

INSTANTIATE_TEST_SUITE_P(
    Kinds, Planted,
    testing::Values(
        Case{"worker", kPlain, {{.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.4}}},
        Case{"worker_pp1", {.dp = 8, .pp = 1}, {{.kind = FaultKind::kWorker, .dp = 5, .factor = 1.3}}},
        Case{"worker_overlapped",
             {.overlapped = true},
             {{.kind = FaultKind::kWorker, .dp = 0, .stage = 3, .factor = 1.3}}},
        Case{"worker_interleaved", {.vpp = 2}, {{.kind = FaultKind::kWorker, .dp = 1, .stage = 2, .factor = 1.4}}},
        Case{"transient_worker",
             kPlain,
             {{.kind = FaultKind::kTransientWorker,
               .dp = 3,
               .stage = 0,
               .factor = 1.5,
               .first_step = 6,
               .last_step = 15}}},
        Case{"stage", kPlain, {{.kind = FaultKind::kStage, .stage = 3, .factor = 1.5}}},
        Case{"stage_dp1", {.dp = 1, .pp = 4}, {{.kind = FaultKind::kStage, .stage = 1, .factor = 1.3}}},
        Case{"sequence_length", kPlain, {{.kind = FaultKind::kSequenceLength, .factor = 0.35}}, false},
        Case{"gc", kPlain, {{.kind = FaultKind::kGc, .seconds{0.5}, .share = 0.2}}},
        Case{"link", kPlain, {{.kind = FaultKind::kLink, .dp = 1, .stage = 1, .seconds{0.25}}}},
        Case{"link_of_two", {.dp = 2, .pp = 2}, {{.kind = FaultKind::kLink, .dp = 1, .stage = 0, .seconds{0.25}}}},
        Case{"ring", {.reduce{0.03}}, {{.kind = FaultKind::kRing, .stage = 1, .factor = 20}}},
        Case{"fabric", kPlain, {{.kind = FaultKind::kFabric, .factor = 20, .first_step = 8, .last_step = 12}}},
        Case{"data_loading", kPlain, {{.kind = FaultKind::kDataLoading, .dp = 2, .seconds{1}}}},
        Case{"stage_and_worker",
             kPlain,
             {{.kind = FaultKind::kStage, .stage = 3, .factor = 1.6},
              {.kind = FaultKind::kWorker, .dp = 1, .stage = 0, .factor = 1.6}}},
        Case{"link_and_worker",
             kPlain,
             {{.kind = FaultKind::kLink, .dp = 1, .stage = 1, .seconds{0.25}},
              {.kind = FaultKind::kWorker, .dp = 3, .stage = 2, .factor = 1.4}}},
        Case{"lengths_and_worker_pp1",
             {.dp = 8, .pp = 1},
             {{.kind = FaultKind::kSequenceLength, .factor = 0.15},
              {.kind = FaultKind::kWorker, .dp = 3, .factor = 1.8}},
             false},
        Case{"lengths_and_transient_worker_pp1",
             {.dp = 8, .pp = 1},
             {{.kind = FaultKind::kSequenceLength, .factor = 0.15},
              {.kind = FaultKind::kTransientWorker, .dp = 3, .factor = 1.8, .first_step = 6, .last_step = 12}},
             false},
        Case{"lengths_and_gc",
             kPlain,
             {{.kind = FaultKind::kSequenceLength, .factor = 0.2}, {.kind = FaultKind::kGc, .seconds{2}, .share = 0.5}},
             false}),
    [](const auto& one) { return one.param.name; });

// As where clocks go back: nothing can be said of passes that take no time, and gains stay numbers.
TEST(Causes, PassesOfNoTimeSayNothingOfPauses) {
  for (const int zeros : {5, 8}) {
    const JobShape shape{.dp = 1, .pp = 1, .microbatches = 8, .steps = 10};
    trace::StragglerRows rows = synth::Generate(shape, {{.kind = FaultKind::kGc}}, 1).value();
    for (auto& piece : rows.pieces)
      for (trace::StragglerRow& row : piece)
        if (rows.steps[row.step] == rows.steps[3] && row.type == trace::OpType::kForwardCompute && row.sequence < zeros)
          row.duration = 0;
    const auto job = trace::BuildStragglerJob(std::move(rows), synth::MetaOf(shape), 1).value();
    for (const Cause& cause : FindCauses(job, WhatIf(job)).found) {
      EXPECT_TRUE(std::isfinite(cause.gain_s)) << zeros << " " << CauseName(cause.kind);
      EXPECT_TRUE(std::isfinite(cause.share)) << zeros << " " << CauseName(cause.kind);
    }
  }
}

// No lane is whole, so ops are in the order of their mean starts.
TEST(Causes, LostRowsAndASlowFirstStepLeaveTheOrderOfOps) {
  const JobShape shape{.dp = 4, .pp = 4, .microbatches = 32, .steps = 10};
  const Fault slow{.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.4};
  auto rows = synth::Generate(shape, {slow}, 1).value();
  size_t number = 0;
  for (auto& piece : rows.pieces) {
    std::erase_if(piece, [&](const trace::StragglerRow&) { return ++number % 97 == 0; });
    for (trace::StragglerRow& row : piece) {
      if (rows.steps[row.step] != rows.steps[0]) continue;
      row.start *= 3;
      row.duration *= 3;
    }
  }
  const auto job = trace::BuildStragglerJob(std::move(rows), synth::MetaOf(shape), 1);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  const Causes causes = FindCauses(*job, WhatIf(*job));
  ASSERT_FALSE(causes.found.empty());
  EXPECT_EQ(causes.found[0].suspects.at(0).dp, 2);
}

TEST(Causes, AWorkerThatIsSlowTwiceIsNamedForBothRuns) {
  const auto slow = [](int first, int last) {
    return Fault{.kind = FaultKind::kTransientWorker,
                 .dp = 1,
                 .stage = 2,
                 .factor = 1.6,
                 .first_step = first,
                 .last_step = last};
  };
  const JobShape shape{.dp = 4, .pp = 4, .steps = 30};
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Answer answer = Explain(shape, {slow(3, 5), slow(20, 24)}, seed);
    ASSERT_THAT(answer.Names(), ElementsAre("transient_worker", "transient_worker")) << "seed " << seed;
    const CauseSuspect &longer = answer.causes[0].suspects.at(0), &shorter = answer.causes[1].suspects.at(0);
    EXPECT_EQ(std::pair(longer.first_step, longer.last_step),
              std::pair(std::optional<int64_t>(20), std::optional<int64_t>(24)));
    EXPECT_EQ(std::pair(shorter.first_step, shorter.last_step),
              std::pair(std::optional<int64_t>(3), std::optional<int64_t>(5)));
  }
}

TEST(Causes, WorkersThatAreSlowInTheSameStepsAreNamedTogether) {
  const auto slow = [](int dp, double factor) {
    return Fault{
        .kind = FaultKind::kTransientWorker, .dp = dp, .stage = 0, .factor = factor, .first_step = 3, .last_step = 6};
  };
  for (const double other : {1.8, 1.5}) {
    const Answer answer = Explain({.dp = 8, .pp = 1}, {slow(1, 1.8), slow(2, other)}, 1);
    ASSERT_THAT(answer.Names(), ElementsAre("transient_worker")) << other;
    std::vector<int> workers;
    for (const CauseSuspect& suspect : answer.causes[0].suspects) workers.push_back(suspect.dp.value());
    EXPECT_THAT(workers, testing::UnorderedElementsAre(1, 2)) << other;
    EXPECT_TRUE(other == 1.8 || workers.front() == 1);
    EXPECT_GT(answer.causes[0].share, 0.9) << other;
  }
}

TEST(Causes, ThatCostTheSameAndHideEachOtherAreBothNamed) {
  const Fault worker{.kind = FaultKind::kWorker, .dp = 0, .stage = 1, .factor = 1.3};
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const double wanted = Explain(kPlain, {worker}, seed).step_s;
    Fault link{.kind = FaultKind::kLink, .dp = 2, .stage = 1};
    double low = 0, high = 2;
    for (int i = 0; i < 15; ++i) {
      link.seconds.value = (low + high) / 2;
      (Explain(kPlain, {link}, seed).step_s < wanted ? low : high) = link.seconds.value;
    }
    const Answer answer = Explain(kPlain, {worker, link}, seed), healthy = Explain(kPlain, {}, seed);
    ASSERT_THAT(answer.Names(), testing::UnorderedElementsAre("worker", "link")) << "seed " << seed;
    const double loss = answer.step_s - healthy.step_s;
    EXPECT_NEAR(answer.causes[0].gain_s + answer.causes[1].gain_s, loss, 0.03 * loss) << "seed " << seed;
  }
}

class Healthy : public testing::TestWithParam<int> {};

TEST_P(Healthy, NobodyIsNamed) {
  const auto seed = static_cast<uint64_t>(GetParam());
  for (const JobShape& shape : {kPlain, JobShape{.dp = 16, .pp = 1}, JobShape{.vpp = 2}, JobShape{.overlapped = true}})
    EXPECT_THAT(Explain(shape, {}, seed).Names(), ElementsAre());
}
INSTANTIATE_TEST_SUITE_P(Seeds, Healthy, testing::Range(1, kSeeds + 1));

}  // namespace
}  // namespace lockstep::explain
