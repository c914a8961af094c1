#include "lockstep/plan/step_graph.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/plan/layout.h"
#include "lockstep/plan/schedule.h"
#include "lockstep/plan/step.h"
#include "lockstep/plan/step_trace.h"
#include "lockstep/plan/test_workload.h"
#include "lockstep/trace/chakra_job.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

int Pick(std::mt19937_64& random, int least, int most) {
  return least + static_cast<int>(random() % static_cast<uint64_t>(most - least + 1));
}

Workload RandomWorkload(std::mt19937_64& random, Schedule schedule) {
  Workload work = TestWorkload();
  work.schedule = schedule;
  work.machine.nic = 100e9;
  work.pp = 2 * Pick(random, 1, 5);
  const bool interleaves = schedule == Schedule::k1F1B && Pick(random, 0, 1) == 1;
  work.chunks = interleaves ? Pick(random, 2, 4) : 1;
  work.layers = work.pp * work.chunks * Pick(random, 3, 8);
  work.tp = 1 << Pick(random, 0, 3);
  work.sequence_parallel = work.tp > 1;
  work.dp = Pick(random, 1, 4);
  work.accelerators = work.tp * work.pp * work.dp;
  work.zero = Pick(random, 0, 2);
  if (Pick(random, 0, 2) == 0) work.recompute = Recompute::kFull;
  const int batches = interleaves ? work.pp * Pick(random, 2, 8) : 2 * Pick(random, work.pp, 6 * work.pp);
  work.global_batch = work.dp * batches;
  return work;
}

double Graphed(const Workload& work, const Rates& rates) {
  const auto step = BuildStepGraph(work, rates);
  EXPECT_TRUE(step.ok()) << step.status();
  return step.ok() ? Simulate(*step).total.value : 0;
}

// Two ways to the same time. Transfers are small here: the closed form has two of each microbatch hold up all stages,
// the graph only one the last stage, which is usually the slowest.
TEST(StepGraph, AgreesWithTheClosedForm) {
  std::mt19937_64 random(7);
  for (const Schedule schedule :
       {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p, Schedule::kDualPipe}) {
    for (int i = 0; i < 100; ++i) {
      const Workload work = RandomWorkload(random, schedule);
      ASSERT_TRUE(work.Validate().ok());
      const double closed = PredictStep(work, Rates{}).total().value;
      EXPECT_THAT(Graphed(work, Rates{}) / closed, DoubleNear(1, .02))
          << ScheduleName(schedule) << " pp " << work.pp << " vp " << work.chunks << " m " << work.Microbatches()
          << " layers " << work.layers << " tp " << work.tp << " dp " << work.dp;
    }
  }
}

// As much work as four layers, where each stage has three.
TEST(StepGraph, AgreesWithALargeOutputLayer) {
  std::mt19937_64 random(10);
  for (int i = 0; i < 100; ++i) {
    Workload work = RandomWorkload(random, i % 2 == 0 ? Schedule::k1F1B : Schedule::kZeroBubbleH1);
    work.chunks = 1, work.layers = 3 * work.pp, work.vocabulary = 200'000, work.machine.nic = 1e12;
    work.global_batch = work.dp * Pick(random, work.pp, 4 * work.pp);
    const double closed = PredictStep(work, Rates{}).total().value;
    EXPECT_THAT(Graphed(work, Rates{}) / closed, DoubleNear(1, .02)) << LayoutText(work) << " " << work.Microbatches();
  }
}

// From one microbatch, or one or two a stage, on.
TEST(StepGraph, AgreesWhereStagesDiffer) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 600; ++i) {
    constexpr Schedule kSchedules[] = {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p};
    Workload work = RandomWorkload(random, kSchedules[i % 3]);
    work.chunks = 1;
    work.stage_layers.clear();
    for (int stage = 0; stage < work.pp; ++stage) work.stage_layers.push_back(Pick(random, 6, 9));
    work.layers = 0;
    for (const int layers : work.stage_layers) work.layers += layers;
    const int least = work.schedule == Schedule::k1F1B           ? 1
                      : work.schedule == Schedule::kZeroBubbleH1 ? work.pp
                                                                 : 2 * work.pp;
    work.global_batch = work.dp * Pick(random, least, 4 * work.pp);
    ASSERT_TRUE(work.Validate().ok());
    const double closed = PredictStep(work, Rates{}).total().value;
    EXPECT_THAT(Graphed(work, Rates{}) / closed, DoubleNear(1, .02)) << LayoutText(work) << " " << work.Microbatches();
  }
}

// What replicas exchange hides behind the last backward pass, which waits for others before it begins.
TEST(StepGraph, AgreesWhereReplicasExchangeMuch) {
  std::mt19937_64 random(12);
  Rates rates;
  for (int i = 0; i < 100; ++i) {
    Workload work = RandomWorkload(random, Schedule::k1F1B);
    work.chunks = 1, work.dp = 4, work.accelerators = work.tp * work.pp * work.dp;
    work.global_batch = work.dp * Pick(random, 1, work.pp);
    rates.data_hidden = .1 * Pick(random, 1, 9);
    const double closed = PredictStep(work, rates).total().value;
    EXPECT_THAT(Graphed(work, rates) / closed, DoubleNear(1, .02)) << LayoutText(work) << " " << work.Microbatches();
  }
}

// One layer with experts in three to nine, so that stages have none, some, or more than others.
TEST(StepGraph, AgreesWhereSomeStagesHaveExperts) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 200; ++i) {
    Workload work = RandomWorkload(random, i % 2 == 0 ? Schedule::k1F1B : Schedule::kZeroBubbleH1);
    work.chunks = 1, work.tp = 1, work.accelerators = work.pp * work.dp, work.sequence_parallel = false;
    work.experts = 4, work.top_k = 2, work.expert_ffn = 4096 * Pick(random, 1, 8),
    work.experts_every = Pick(random, 3, std::min(9, work.layers));
    ASSERT_TRUE(work.Validate().ok());
    const double closed = PredictStep(work, Rates{}).total().value;
    EXPECT_THAT(Graphed(work, Rates{}) / closed, DoubleNear(1, .02)) << LayoutText(work) << " " << work.Microbatches();
  }
}

// All microbatches pass the one layer with experts.
TEST(StepGraph, TheStageWithExpertsSetsThePace) {
  Workload work = TestWorkload();
  work.layers = 6, work.experts = 4, work.top_k = 2, work.expert_ffn = 16'384, work.experts_every = 4;
  work.accelerators = 1, work.global_batch = 120;
  const double experts = PredictStep(work, Rates{})[Part::kExperts];
  work.accelerators = work.pp = 6;
  EXPECT_GT(PredictStep(work, Rates{}).total().value, experts);
  work.chunks = 1, work.schedule = Schedule::kDualPipe;
  EXPECT_THAT(Message(CheckSchedule(work)), HasSubstr("stages that are alike"));
}

// Frozen stages below, layers that are computed again on some, activations and optimizer on the host.
TEST(StepGraph, AgreesWhereStagesAreFrozenOrOffloaded) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 100; ++i) {
    Workload work = RandomWorkload(random, i % 2 == 0 ? Schedule::k1F1B : Schedule::kZeroBubbleH1);
    work.chunks = 1;
    // What is frozen makes passes shorter, and stages differ more: transfers and both ends should stay small beside
    // them.
    work.layers *= 3, work.global_batch *= 2;
    work.machine.host_link = 50e9, work.machine.host_memory = 1e12, work.machine.host_bandwidth = 1e11;
    work.offload = {Pick(random, 0, 1) == 1, Pick(random, 0, 1) == 1};
    work.frozen = {Pick(random, 0, work.layers / 2), Pick(random, 0, 1) == 1};
    work.recompute = Recompute::kFull, work.recomputed_layers = Pick(random, 1, work.layers / work.pp);
    ASSERT_TRUE(work.Validate().ok());
    const double closed = PredictStep(work, Rates{}).total().value;
    EXPECT_THAT(Graphed(work, Rates{}) / closed, DoubleNear(1, .02))
        << LayoutText(work) << " frozen " << work.frozen.layers << " of " << work.layers << " m "
        << work.Microbatches();
  }
}

TEST(StepGraph, AgreesWhereWeightsComeFromTheHost) {
  Workload work = TestWorkload();
  work.zero = 3, work.dp = static_cast<int>(work.accelerators);
  work.machine.host_link = 1e9, work.machine.host_memory = 1e12, work.machine.host_bandwidth = 1e11;
  const double without = PredictStep(work, Rates{}).total().value;
  work.offload = {.optimizer = true, .activations = true, .weights = true};
  const double closed = PredictStep(work, Rates{}).total().value;
  EXPECT_GT(closed, without);
  EXPECT_THAT(Graphed(work, Rates{}) / closed, DoubleNear(1, 1e-6));
}

// Four stages, eight microbatches, nothing but layers: the bubble is exact.
TEST(StepGraph, ABubbleByHand) {
  Workload work = TestWorkload();
  work.accelerators = work.pp = 4, work.global_batch = 8;
  work.vocabulary = 1;
  Rates rates;
  rates.pipeline_hidden = 1, rates.microbatch = 0, rates.step = 0, rates.straggle = 0, rates.optimizer_bytes = 0;
  const StageTimes times = PredictStage(work, rates);
  const double forward = 4 * times.layer.forward, input = 4 * times.layer.input, weight = 4 * times.layer.weight;
  EXPECT_THAT(Graphed(work, rates) / ((8 + 3) * (forward + input + weight)), DoubleNear(1, 1e-3));
  work.schedule = Schedule::kZeroBubbleH1;
  EXPECT_THAT(Graphed(work, rates) / (8 * (forward + input + weight) + 3 * (forward + input - weight)),
              DoubleNear(1, 1e-3));
}

TEST(StepGraph, RefusesWhatIsTooLarge) {
  Workload work = TestWorkload();
  work.accelerators = work.pp = 16, work.global_batch = 1 << 20;
  EXPECT_THAT(Message(BuildStepGraph(work, Rates{}).status()), HasSubstr("more than a graph of 1000000 ops holds"));
  work.global_batch = 8, work.schedule = Schedule::kDualPipe;
  EXPECT_THAT(Message(BuildStepGraph(work, Rates{}).status()), HasSubstr("at least 32 microbatches"));
}

class Files : public testing::Test {
 protected:
  Files() {
    work_.pp = 4, work_.dp = 4, work_.zero = 1, work_.chunks = 2;
    step_ = *BuildStepGraph(work_, Rates{});
    times_ = Simulate(step_);
  }
  Workload work_ = TestWorkload();
  StepGraph step_;
  StepTimes times_;
  const TestFolder folder_;
};

// What a reader of Chakra makes of the files takes as long as the graph that they were written from.
TEST_F(Files, ChakraIsReadBack) {
  const auto paths = WriteChakraTraces(step_, folder_ / "step.et");
  ASSERT_TRUE(paths.ok()) << paths.status();
  std::vector<trace::ChakraRank> ranks;
  for (const std::string& path : *paths) {
    auto rank = trace::ReadChakra(path);
    ASSERT_TRUE(rank.ok()) << rank.status();
    EXPECT_EQ(rank->rank, std::ssize(ranks));
    ranks.push_back(*std::move(rank));
  }
  ASSERT_EQ(ranks.size(), 4U);
  auto job = trace::BuildChakraJob(std::move(ranks));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(double(job->step_times.at(0)), DoubleNear(times_.total.value, 1e-3 * times_.total.value));
}

// Every op is a slice, those of a thread follow each other, the last ends with the step.
TEST_F(Files, TheTimelineIsWhole) {
  const std::string path = folder_ / "step.json";
  ASSERT_TRUE(WriteTimeline(step_, times_, path).ok());
  const Json timeline = ParseJson(ReadFile(path).value());
  std::map<int, double> end;
  size_t slices = 0;
  for (const Json& event : timeline["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++slices;
    end[event["tid"]] = std::max(end[event["tid"]], event["ts"].get<double>() + event["dur"].get<double>());
  }
  EXPECT_EQ(slices, step_.ops.size());
  double last = 0;
  for (const auto& [thread, at] : end) last = std::max(last, at);
  EXPECT_THAT(last * 1e-6, DoubleNear(times_.total.value, 1e-6));
}

}  // namespace
}  // namespace lockstep::plan
