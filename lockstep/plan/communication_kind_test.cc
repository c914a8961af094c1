#include "lockstep/plan/communication_kind.h"

#include <gtest/gtest.h>

#include "lockstep/plan/kernel_kind.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

// tp 2, cp 2, dp 2, pp 2: rank = tp + 2 cp + 4 dp + 8 pp.
Workload Layout() {
  Workload work = TestWorkload();
  work.tp = work.cp = work.dp = work.pp = 2;
  return work;
}

StepPart Of(const std::string& name, const trace::ProcessGroup& group, const Workload& layout = Layout()) {
  return KindOfCommunication({.name = name}, &group, layout).part;
}

TEST(CommunicationKind, IsToldByTheNameOfTheGroup) {
  EXPECT_EQ(Of("allreduce", {"3", "TENSOR_MODEL_PARALLEL_GROUP", {}}), StepPart::kTensor);
  EXPECT_EQ(Of("allreduce", {"4", "DATA_PARALLEL_GROUP_WITH_CP", {}}), StepPart::kData);
  EXPECT_EQ(Of("_allgather_base", {"5", "EXPERT_DATA_PARALLEL_GROUP", {}}), StepPart::kData);
  EXPECT_EQ(Of("_allgather_base", {"6", "mesh_dp_shard", {}}), StepPart::kData);
  EXPECT_EQ(Of("send", {"7", "CONTEXT_PARALLEL_GROUP", {}}), StepPart::kContext);
  EXPECT_EQ(Of("allreduce", {"8", "TENSOR_AND_CONTEXT_PARALLEL_GROUP", {}}), StepPart::kOther);
}

TEST(CommunicationKind, IsToldByTheRanks) {
  EXPECT_EQ(Of("allreduce", {"1", "", {6, 7}}), StepPart::kTensor);
  EXPECT_EQ(Of("allgather", {"1", "", {1, 3}}), StepPart::kContext);
  EXPECT_EQ(Of("allreduce", {"1", "", {0, 4}}), StepPart::kData);
  EXPECT_EQ(Of("allreduce", {"1", "", {0, 2, 4, 6}}), StepPart::kData);
  EXPECT_EQ(Of("allreduce", {"1", "", {0, 8}}), StepPart::kPipeline);
  const trace::ProcessGroup all{"0", "default_pg", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
  EXPECT_EQ(Of("allreduce", all), StepPart::kOther);
  EXPECT_TRUE(KindOfCommunication({.name = "allreduce"}, &all, Layout()).spans_stages);
  EXPECT_EQ(Of("sendrecv", all), StepPart::kPipeline) << "of a group of several kinds, a transfer tells more";
}

TEST(CommunicationKind, IsWhatTheLayoutLeaves) {
  Workload replicas = TestWorkload();
  replicas.dp = 16;
  EXPECT_EQ(KindOfCommunication({.name = "allreduce"}, nullptr, replicas).part, StepPart::kData);
  EXPECT_EQ(KindOfCommunication({.name = "allreduce"}, nullptr, Layout()).part, StepPart::kOther);
  EXPECT_EQ(KindOfCommunication({.name = "sendrecv"}, nullptr, Layout()).part, StepPart::kPipeline);
  replicas.ep = 4;
  EXPECT_EQ(KindOfCommunication({.name = "all_to_allv"}, nullptr, replicas).part, StepPart::kExpertExchange);
}

std::string CheckOf(const std::string& name, const std::vector<int>& ranks) {
  return std::string(CheckGroup({"1", name, ranks}, Layout()).message());
}

TEST(CommunicationKind, AGroupOfAnotherLayoutIsRefused) {
  EXPECT_EQ(CheckOf("TENSOR_MODEL_PARALLEL_GROUP", {0, 1}), "");
  EXPECT_EQ(CheckOf("TENSOR_MODEL_PARALLEL_GROUP", {0, 1, 2, 3}),
            "its group \"TENSOR_MODEL_PARALLEL_GROUP\" has 4 ranks, but the layout has tp=2; expected a trace of a job "
            "in this layout");
  EXPECT_NE(CheckOf("mesh_pp", {0, 4, 8, 12}), "");
  EXPECT_EQ(CheckOf("mesh_dp_shard", {0, 4}), "");
  EXPECT_EQ(CheckOf("DATA_PARALLEL_GROUP_WITH_CP", {0, 2, 4, 6}), "");
  EXPECT_NE(CheckOf("DATA_PARALLEL_GROUP", {0, 2, 4, 6, 8, 10, 12, 14}), "");
  for (const char* any :
       {"TENSOR_AND_CONTEXT_PARALLEL_GROUP", "EMBEDDING_GROUP", "default_pg", "EXPERT_MODEL_PARALLEL"})
    EXPECT_EQ(CheckOf(any, {0, 1, 2, 3, 4}), "") << any;
  EXPECT_EQ(CheckOf("mesh_tp", {}), "") << "not told";
}

TEST(CommunicationKind, AGroupOfSeveralDimensionsIsNotRefused) {
  for (const char* mesh : {"mesh_dp_tp", "mesh_pp_tp", "mesh_cp_tp", "mesh_dp_shard_tp", "mesh_pp_dp"}) {
    EXPECT_EQ(CheckOf(mesh, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}), "") << mesh;
    EXPECT_EQ(Of("allreduce", {"1", mesh, {}}), StepPart::kOther) << mesh;
  }
  for (const char* mesh : {"mesh_dp_cp", "mesh_dp_shard_cp"}) {
    EXPECT_EQ(CheckOf(mesh, {0, 2, 4, 6}), "") << mesh;
    EXPECT_NE(CheckOf(mesh, {0, 1, 2, 3, 4, 5, 6, 7}), "") << mesh;
    EXPECT_EQ(Of("allreduce", {"1", mesh, {}}), StepPart::kData) << mesh;
  }
}

// tp 4, dp 2, but experts of one tensor-parallel rank each: four replicas of each.
TEST(CommunicationKind, GroupsOfExpertsHaveALayoutOfTheirOwn) {
  Workload experts = TestWorkload();
  experts.tp = 4, experts.dp = 2, experts.ep = 2;
  for (const char* name : {"EXPERT_DATA_PARALLEL_GROUP", "mesh_dp_shard_mod_ep"}) {
    const trace::ProcessGroup group{"1", name, {0, 2, 4, 6}};
    EXPECT_TRUE(CheckGroup(group, experts).ok()) << name;
    EXPECT_EQ(Of("_allgather_base", group, experts), StepPart::kData) << name;
  }
  experts.ep = 1;
  EXPECT_FALSE(CheckGroup({"1", "EXPERT_DATA_PARALLEL_GROUP", {0, 2, 4, 6}}, experts).ok());
}

TEST(CommunicationKind, AGroupWithoutANameFitsTheLayoutOrDoesNot) {
  const auto fits = [](const std::vector<int>& ranks) { return FitsLayout({"1", "", ranks}, Layout()); };
  EXPECT_TRUE(fits({0, 1}) && fits({0, 2, 4, 6}) && fits({0, 8}) && fits({2, 6}) && fits({}));
  EXPECT_TRUE(fits({0, 1, 2, 3, 4, 5, 6, 7})) << "what shares tensors, and all replicas";
  EXPECT_FALSE(fits({0, 1, 2, 3})) << "half of the replicas";
  EXPECT_FALSE(fits({0, 3, 4, 7}));
  Workload wide = TestWorkload();
  wide.tp = 8, wide.dp = 2;
  EXPECT_FALSE(FitsLayout({"1", "", {0, 1, 2, 3}}, wide)) << "half of what shares tensors";
}

// Names as profilers have them, shortened.
TEST(KernelKind, IsToldByTheName) {
  const std::pair<const char*, StepPart> names[] = {
      {"sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x32", StepPart::kMatrix},
      {"void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nt_align8>", StepPart::kMatrix},
      {"nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", StepPart::kMatrix},
      {"volta_sgemm_128x64_nt", StepPart::kMatrix},
      {"Cijk_Ailk_Bljk_HHS_BH_MT256x128x32", StepPart::kMatrix},
      {"void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t>>", StepPart::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)", StepPart::kAttention},
      {"cudnn_generated_fort_native_sdpa_sm90_knob_7_64x128x128", StepPart::kAttention},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", StepPart::kOptimizer},
      {"void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", StepPart::kOptimizer},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", StepPart::kElementWise},
      {"triton_poi_fused_mul_silu_3", StepPart::kElementWise},
      {"triton_tem_fused_mm_17", StepPart::kMatrix},
      {"Memcpy DtoD (Device -> Device)", StepPart::kElementWise},
      {"Memset (Device)", StepPart::kElementWise},
      {"Memcpy HtoD (Pinned -> Device)", StepPart::kCopies},
      {"my_kernel", StepPart::kUnknown},
  };
  for (const auto& [name, part] : names) EXPECT_EQ(StepPartName(KindOfKernel(name)), std::string(StepPartName(part)));
}

}  // namespace
}  // namespace lockstep::plan
