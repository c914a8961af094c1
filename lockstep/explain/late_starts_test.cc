// Workers that begin a step late, with whatever op they begin it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/explain/report.h"
#include "lockstep/explain/test_job.h"
#include "lockstep/trace/kineto_job.h"

namespace lockstep::explain {
namespace {

using trace::OpType;

const synth::JobShape kShape{.dp = 4, .pp = 2, .microbatches = 4, .steps = 12};  // steps of 3.5 s

trace::TracedJob Late(OpType first, int dp, int stage, double seconds) {
  const trace::TracedJob healthy = JobOf(synth::Generate(kShape, {}, 1).value(), kShape);
  std::vector<float> delays = healthy.delays;
  for (uint32_t op = 0; op < healthy.ops.size(); ++op)
    for (size_t lane = 0; lane < healthy.lanes.size(); ++lane)
      if (healthy.ops[op].type == first && healthy.ops[op].sequence == 0 && healthy.ops[op].stage == stage &&
          healthy.lanes[lane].dp == dp)
        delays[healthy.graph.Cell(op, lane)] += static_cast<float>(seconds);
  return Recorded(healthy, healthy.transfers, delays);
}

double MeanStep(const trace::TracedJob& job) {
  return std::reduce(job.step_times.begin(), job.step_times.end(), 0.0) / static_cast<double>(job.step_times.size());
}

TEST(LateStarts, AreNamedWhateverBeginsTheStep) {
  const double healthy = MeanStep(Late(OpType::kGc, 0, 0, 0));
  for (const OpType first : {OpType::kParamsAllGather, OpType::kForwardCompute})
    for (const int stage : {0, 1}) {
      const trace::TracedJob job = Late(first, 2, stage, 0.5);
      const double lost = MeanStep(job) - healthy;
      ASSERT_GT(lost, 0.1);
      const Causes causes = FindCauses(job, WhatIf(job));
      EXPECT_EQ(TextOf(causes.found), fmt::format("data_loading {}", 2 + 4 * stage))
          << OpTypeName(first) << " " << stage;
      EXPECT_NEAR(causes.found.at(0).gain_s, lost, 0.05 * lost) << OpTypeName(first) << " " << stage;
      EXPECT_LT(causes.unexplained(), 0.2);
    }
}

TEST(LateStarts, WithTheWholeStageAreNamed) {
  trace::StragglerRows rows = synth::Generate(kShape, {}, 1).value();
  EachRow(rows, [](trace::StragglerRow& row) {
    if (row.type != OpType::kParamsAllGather || row.stage == 0) row.start += 0.4F;
  });
  EXPECT_EQ(TextOf(CausesOf(std::move(rows), kShape)), "data_loading 0 1 2 3");
}

// The others wait for a slow optimizer in the next step already.
TEST(LateStarts, OfAWorkerThatEndsTheStepBeforeLateAreNotNamed) {
  constexpr float kLonger = 0.4F;
  trace::StragglerRows rows = synth::Generate(kShape, {}, 1).value();
  EachRow(rows, [&](trace::StragglerRow& row) {
    const bool slow = row.dp == 1 && row.stage == 0;
    if (row.type == OpType::kOptimizer && slow) row.duration += kLonger;
    if (row.type != OpType::kParamsAllGather) row.start += kLonger;
    if (row.type == OpType::kParamsAllGather && slow) row.start += kLonger;
    if (row.type == OpType::kParamsAllGather && !slow) row.duration += row.stage == 0 ? kLonger : 0;
  });
  const trace::TracedJob job = JobOf(std::move(rows), kShape);
  const Causes causes = FindCauses(job, WhatIf(job));
  EXPECT_EQ(TextOf(causes.found), "optimizer 1");
  EXPECT_LT(causes.unexplained(), 0.2);
}

// Eight ranks gather parameters before they compute, and again before each of four layers but the first; the last
// compute makes what is reduced at the end. The host of rank 6 comes with its batch `late` after the others.
std::vector<trace::KinetoRank> Sharded(int64_t late, double slower) {
  constexpr int kRanks = 8, kLayers = 4;
  constexpr int64_t kUs = 1'000, kMs = 1'000'000;
  std::vector<int> all(kRanks);
  std::iota(all.begin(), all.end(), 0);
  std::vector<trace::KinetoRank> ranks(kRanks);
  for (const int rank : all) {
    trace::KinetoRank& one = ranks[static_cast<size_t>(rank)];
    one.rank = rank;
    one.world_size = kRanks;
    one.streams = {"device 0 stream 7", "device 0 stream 20"};
    one.groups = {{"0", "fsdp", all}};
    one.collectives = {{"_allgather_base", 0, -1, 8, 8, -1, false}, {"_reduce_scatter_base", 0, -1, 8, 8, -1, false}};
  }
  std::vector<int64_t> now(kRanks), begins(kRanks);
  const auto communicate = [&](uint32_t what) {
    const int64_t end = *std::ranges::max_element(now) + kMs;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      ranks[rank].ops.push_back({now[rank], end - now[rank], now[rank] - 6 * kUs, 1, what});
      now[rank] = end;
    }
  };
  for (int step = 0; step < 10; ++step) {
    begins = now;
    for (size_t rank = 0; rank < kRanks; ++rank) now[rank] += 20 * kUs + (rank == 6 ? late : 0);
    for (int layer = 0; layer < kLayers; ++layer) {
      communicate(0);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        const int64_t jitter = (step * 7 + layer * 5 + int64_t(rank) * 3) % 5 * kMs / 50;
        const int64_t length = std::llround(12 * kMs * (rank == 5 ? slower : 1)) + jitter;
        ranks[rank].ops.push_back({now[rank], length, now[rank] - 5 * kUs, 0, trace::kNoIndex});
        now[rank] += length;
      }
    }
    communicate(1);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      ranks[rank].ops.push_back({now[rank], kMs, now[rank] - 5 * kUs, 0, trace::kNoIndex});
      now[rank] += kMs;
      ranks[rank].steps.push_back({step, begins[rank], now[rank] - begins[rank]});
    }
  }
  for (trace::KinetoRank& rank : ranks)
    std::ranges::stable_sort(rank.ops, {}, [](const trace::DeviceOp& op) { return std::pair(op.stream, op.begin_ns); });
  return ranks;
}

Causes CausesOfSharded(int64_t late, double slower) {
  const trace::TracedJob job = trace::BuildKinetoJob(Sharded(late, slower), {}).value().job;
  return FindCauses(job, WhatIf(job));
}

TEST(LateStarts, OfAStepThatBeginsWithACommunicationAreNamed) {
  EXPECT_EQ(TextOf(CausesOfSharded(0, 1).found), "");
  const Causes late = CausesOfSharded(30'000'000, 1);
  EXPECT_EQ(TextOf(late.found), "data_loading 6");
  EXPECT_NEAR(late.found.at(0).gain_s, 0.030, 0.001);
  EXPECT_LT(late.unexplained(), 0.05);
  const Causes both = CausesOfSharded(30'000'000, 1.3);
  EXPECT_EQ(TextOf(both.found), "data_loading 6, worker 5");
  EXPECT_LT(both.unexplained(), 0.05);
}

}  // namespace
}  // namespace lockstep::explain
