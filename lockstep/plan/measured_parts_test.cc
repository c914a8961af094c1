#include "lockstep/plan/measured_parts.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "lockstep/plan/test_kernels.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

constexpr char kAllReduce[] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)";
constexpr char kSendRecv[] = "ncclDevKernel_SendRecv(ncclDevComm*)";
constexpr double kExact = 2e-8;  // s: files have nanoseconds

// tp 2, dp 2: four ranks of one stage.
Workload TwoByTwo() {
  Workload work = TestWorkload();
  work.accelerators = 4;
  work.tp = work.dp = 2;
  return work;
}

MeasuredParts Measure(const std::vector<std::vector<TestKernel>>& kernels, const Workload& layout, int steps = 3) {
  auto ranks = ReadTestRanks(kernels, layout.accelerators, steps);
  EXPECT_TRUE(ranks.ok()) << Message(ranks.status());
  auto measured = MeasureParts(*std::move(ranks), layout);
  EXPECT_TRUE(measured.ok()) << Message(measured.status());
  return *std::move(measured);
}

std::vector<int> TensorGroup(int rank) { return {rank / 2 * 2, rank / 2 * 2 + 1}; }
std::vector<int> DataGroup(int rank) { return {rank % 2, rank % 2 + 2}; }

struct Durations {
  StepParts parts;
  // Kernels of a rank, one after the other, that take this.
  std::vector<TestKernel> Of(int rank) const {
    return {{"", parts[StepPart::kBetweenSteps]},
            {"Memcpy HtoD (Pinned -> Device)", parts[StepPart::kCopies]},
            {"nvjet_tst_128x256_64x4_2x1_v_bz_TNT", parts[StepPart::kMatrix] / 2},
            {kAllReduce, parts[StepPart::kTensor], Told("allreduce", "mesh_tp", TensorGroup(rank))},
            {"flash_fwd_kernel", parts[StepPart::kAttention]},
            {"", parts[StepPart::kLaunches]},
            {"nvjet_tst_128x256_64x4_2x1_v_bz_TNT", parts[StepPart::kMatrix] / 2},
            {"triton_poi_fused_add_0", parts[StepPart::kElementWise]},
            {kAllReduce, parts[StepPart::kData], Told("allreduce", "2", DataGroup(rank))},
            {kAllReduce, parts[StepPart::kOther], Told("allreduce", "0", {0, 1, 2, 3})},
            {"my_kernel", parts[StepPart::kUnknown]},
            {"multi_tensor_apply_kernel", parts[StepPart::kOptimizer]}};
  }
};
Durations Usual() {
  Durations usual;
  double seconds = .001;
  for (const StepPart part : {StepPart::kMatrix, StepPart::kAttention, StepPart::kElementWise, StepPart::kLaunches,
                              StepPart::kTensor, StepPart::kData, StepPart::kOther, StepPart::kOptimizer,
                              StepPart::kBetweenSteps, StepPart::kCopies, StepPart::kUnknown})
    usual.parts[part] = seconds += .001;
  return usual;
}

TEST(MeasuredParts, FilesOfAnotherLayoutAreNamed) {
  std::vector<std::vector<TestKernel>> kernels;
  for (int rank = 0; rank < 4; ++rank) kernels.push_back(Usual().Of(rank));
  Workload other = TwoByTwo();
  other.tp = 4, other.dp = 1;
  const auto measured = MeasureParts(ReadTestRanks(kernels, 4).value(), other);
  EXPECT_THAT(std::string(measured.status().message()),
              testing::AllOf(HasSubstr("rank-0.json.gz"), HasSubstr("\"mesh_tp\" has 2 ranks"), HasSubstr("tp=4")));
  EXPECT_EQ(Measure(kernels, TwoByTwo()).odd_groups.size(), 0U);
}

// Whatever part takes longer, that part is told, by as much.
TEST(MeasuredParts, EachPartIsToldByItsTime) {
  const Durations usual = Usual();
  for (size_t i = 0; i <= kStepParts; ++i) {
    Durations inflated = usual;
    if (i < kStepParts) inflated.parts.seconds[i] *= 1.7;
    std::vector<std::vector<TestKernel>> kernels;
    for (int rank = 0; rank < 4; ++rank) kernels.push_back(inflated.Of(rank));
    const MeasuredParts measured = Measure(kernels, TwoByTwo());
    for (size_t j = 0; j < kStepParts; ++j)
      EXPECT_THAT(measured.parts.seconds[j], DoubleNear(inflated.parts.seconds[j], kExact))
          << StepPartName(static_cast<StepPart>(j)) << " with " << i << " longer";
    EXPECT_THAT(measured.parts.total(), DoubleNear(inflated.parts.total(), kStepParts * kExact));
    EXPECT_EQ(measured.matched, 1);
  }
}

// Rank 3 computes 4 ms longer, and the three others wait for it: in the mean 1 ms of products and 3 ms of waiting.
TEST(MeasuredParts, WaitingForASlowRankIsNoCommunication) {
  std::vector<std::vector<TestKernel>> kernels;
  for (int rank = 0; rank < 4; ++rank) {
    const double slower = rank == 3 ? .004 : 0;
    kernels.push_back(
        {{"gemm", .010 + slower}, {kAllReduce, .006 - slower, Told("allreduce", "0", {0, 1, 2, 3})}, {"gemm", .001}});
  }
  Workload replicas = TwoByTwo();
  replicas.tp = 1, replicas.dp = 4;
  const MeasuredParts measured = Measure(kernels, replicas);
  EXPECT_THAT(measured.parts[StepPart::kMatrix], DoubleNear(.012, kExact));
  EXPECT_THAT(measured.parts[StepPart::kStragglers], DoubleNear(.003, kExact));
  EXPECT_THAT(measured.parts[StepPart::kData], DoubleNear(.002, kExact));
  EXPECT_THAT(measured.ranks[3].computes, DoubleNear(.015, kExact));
  EXPECT_THAT(measured.ranks[3].waits, DoubleNear(0, kExact));
}

// Of an all-reduce of 5 ms, 3 run beside a kernel.
TEST(MeasuredParts, WhatRunsBesideComputingIsHidden) {
  Workload replicas = TwoByTwo();
  replicas.tp = 1, replicas.dp = 4;
  const std::string told = Told("allreduce", "0", {0, 1, 2, 3});
  const std::vector<TestKernel> one = {{"gemm", .010}, {kAllReduce, .005, told, .003}, {"gemm", .001}};
  const MeasuredParts measured = Measure({one, one, one, one}, replicas);
  EXPECT_THAT(measured.parts[StepPart::kMatrix], DoubleNear(.011, kExact));
  EXPECT_THAT(measured.parts[StepPart::kData], DoubleNear(.002, kExact));
}

// The second stage receives when the first has computed: it waits 8 of the 9 ms.
TEST(MeasuredParts, WaitingForAStageIsABubble) {
  Workload stages = TwoByTwo();
  stages.accelerators = 2;
  stages.tp = stages.dp = 1, stages.pp = 2;
  const std::vector<std::vector<TestKernel>> kernels = {
      {{"gemm", .008}, {kSendRecv, .001, Told("send", "pp", {0, 1}, ", \"Dst Rank\": 1")}, {"", .004}},
      {{kSendRecv, .009, Told("recv", "pp", {0, 1}, ", \"Src Rank\": 0")}, {"gemm", .004}}};
  const MeasuredParts measured = Measure(kernels, stages);
  EXPECT_THAT(measured.parts[StepPart::kMatrix], DoubleNear(.006, kExact));
  EXPECT_THAT(measured.parts[StepPart::kPipeline], DoubleNear(.001, kExact));
  EXPECT_THAT(measured.parts[StepPart::kBubble], DoubleNear(.004, kExact));
  EXPECT_THAT(measured.parts[StepPart::kBetweenSteps], DoubleNear(.002, kExact));
}

// One rank's file alone: the shortest of the kind is what a transfer takes.
TEST(MeasuredParts, OfOneRankWaitingIsEstimated) {
  Workload replicas = TwoByTwo();
  replicas.tp = 1, replicas.dp = 4;
  const std::string told = Told("allreduce", "0", {0, 1, 2, 3});
  const MeasuredParts measured =
      Measure({{{"gemm", .001}, {kAllReduce, .002, told}, {"gemm", .001}, {kAllReduce, .005, told}}}, replicas);
  EXPECT_EQ(measured.matched, 0);
  EXPECT_THAT(measured.parts[StepPart::kData], DoubleNear(.004, kExact));
  EXPECT_THAT(measured.parts[StepPart::kStragglers], DoubleNear(.003, kExact));
}

TEST(MeasuredParts, OneStepEndsWithItsLastKernel) {
  const MeasuredParts measured = Measure(
      {{{"gemm", .001}, {"", .002}}},
      [] {
        auto w = TwoByTwo();
        w.tp = 4, w.dp = 1;
        return w;
      }(),
      1);
  EXPECT_FALSE(measured.ends_are_known);
  EXPECT_THAT(measured.parts.total(), DoubleNear(.001, kExact));
}

TEST(MeasuredParts, OtherWorldsThanTheLayoutsAreRefused) {
  const auto ranks = ReadTestRanks({{{"gemm", .001}}}, 8);
  ASSERT_TRUE(ranks.ok());
  const auto measured = MeasureParts(*ranks, TwoByTwo());
  ASSERT_FALSE(measured.ok());
  EXPECT_THAT(Message(measured.status()), HasSubstr("of 8 ranks, but --cluster has 4 accelerators"));
}

// From the first kernel that is launched in the first step to that of the last, by the launches alone.
double SecondsBetweenFirstKernels(const trace::KinetoRank& rank) {
  const auto first_since = [&](int64_t launched) {
    int64_t first = INT64_MAX;
    for (const trace::DeviceOp& op : rank.ops)
      if (op.launch_ns >= launched) first = std::min(first, op.begin_ns);
    return first;
  };
  return 1e-9 * static_cast<double>(first_since(rank.steps.back().begin_ns) - first_since(rank.steps.front().begin_ns));
}

// Real jobs' files, of other models than the planner knows.
class RealTraces : public testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(RealTraces, AddUp) {
  const std::string path = fmt::format("{}/kineto/hta/{}", LOCKSTEP_DATA, GetParam().first);
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const auto rank = trace::ReadKineto(path, 0);
  ASSERT_TRUE(rank.ok()) << Message(rank.status());
  Workload layout = TwoByTwo();
  layout.tp = 1, layout.dp = layout.accelerators = GetParam().second;
  const auto measured = MeasureParts({*rank}, layout);
  ASSERT_TRUE(measured.ok()) << Message(measured.status());
  const double steps = static_cast<double>(rank->steps.size()) - 1;
  EXPECT_EQ(measured->steps.size(), steps);
  EXPECT_NEAR(measured->parts.total(), SecondsBetweenFirstKernels(*rank) / steps, 1e-6);
  EXPECT_GT(measured->parts[StepPart::kMatrix], 0);
  EXPECT_GT(measured->parts[StepPart::kOptimizer], 0);
  EXPECT_EQ(measured->parts[StepPart::kData] > 0, layout.dp > 1);
  EXPECT_LT(measured->parts[StepPart::kUnknown], .05 * measured->parts.total());
}
INSTANTIATE_TEST_SUITE_P(Hta, RealTraces,
                         testing::Values(std::pair("nccl_data.json.gz", 2),
                                         std::pair("ns_resolution_rank-0.json.gz", 1),
                                         std::pair("df_index_resolver_rank1_of2.json.gz", 2)));

}  // namespace
}  // namespace lockstep::plan
