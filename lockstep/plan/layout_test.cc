#include "lockstep/plan/layout.h"

#include <gmock/gmock.h>

#include "lockstep/plan/emit.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string Error(const std::string& layout, Workload work = TestWorkload()) {
  return Message(TakeLayout(layout, work));
}

TEST(Layout, ByItsKeys) {
  Workload work = TestWorkload();
  ASSERT_TRUE(TakeLayout("tp=4,pp=2,mbs=2,recompute=full", work).ok());
  EXPECT_EQ(work.dp, 2);
  EXPECT_TRUE(work.sequence_parallel);
  EXPECT_EQ(LayoutText(work), "tp 4, pp 2, dp 2, zero 0, mbs 2, recompute full");
  EXPECT_THAT(Error("tp"), HasSubstr("\"tp\" is no KEY=VALUE"));
  EXPECT_THAT(Error("xp=2"), HasSubstr("there is no \"xp\"; expected recompute"));
  EXPECT_THAT(Error("tp=two"), HasSubstr("expected a whole number"));
  EXPECT_THAT(Error("recompute=some"), HasSubstr("expected none, selective or full"));
  EXPECT_THAT(Error("recompute=full:0"), HasSubstr("expected full:N"));
  EXPECT_THAT(Error("pp=4,recompute=full:5"), HasSubstr("a stage has 4 layers"));
  EXPECT_THAT(Error("pp=4,vp=2,recompute=full:3"), HasSubstr("a multiple of vp 2"));
  EXPECT_THAT(Error("offload=states"), HasSubstr("expected one of none, optimizer, activations, optimizer+"));
  EXPECT_THAT(Error("offload=optimizer"), HasSubstr("host_memory_gb_s of m are not all known"));
  work.machine.host_link = work.machine.host_memory = work.machine.host_bandwidth = 1e12;
  ASSERT_TRUE(TakeLayout("pp=4,recompute=full:2,offload=optimizer+activations", work).ok());
  EXPECT_THAT(LayoutText(work), HasSubstr("recompute full:2, offload optimizer+activations"));
  EXPECT_THAT(Error("pp=2,zero=1,offload=weights", work),
              HasSubstr("needs pp 1 and, of more than one replica, zero 3"));
  EXPECT_THAT(Error("pp=1,tp=8,zero=1,offload=weights", work), HasSubstr("found pp 1, zero 1"));
  Workload mixture = work;
  mixture.experts = 8, mixture.top_k = 2, mixture.expert_ffn = 64, mixture.accelerators = 8;
  EXPECT_THAT(Error("pp=1,tp=8,ep=2,zero=1,offload=weights", mixture), HasSubstr("it needs pp 1")) << "of experts";
  EXPECT_EQ(Error("pp=1,tp=8,ep=8,zero=1,offload=weights", mixture), "");
  work.frozen.embedding = true;
  EXPECT_THAT(Error("zero=3,offload=weights", work), HasSubstr("not beside adapters and frozen parts"));
  EXPECT_THAT(Error("schedule=gpipe"), HasSubstr("expected 1f1b, zb-h1, zb-2p or dualpipe"));
}

// Each rank has as many heads of keys and values as any other, or one that several have.
TEST(Layout, HeadsOfKeysAndValuesAreSplitToo) {
  Workload work = TestWorkload();
  work.heads = 28, work.kv_heads = 4, work.head_dim = 128, work.hidden = 28 * 128, work.accelerators = 56;
  EXPECT_THAT(Error("tp=7,mbs=1", work),
              HasSubstr("4 heads of keys and values can't be split over tp 7: it can be 1, 2, 4 or 28"));
  work.accelerators = 28, work.global_batch = 14;
  EXPECT_EQ(Error("tp=2", work), "");
  EXPECT_EQ(Error("tp=28", work), "");
}

TEST(Layout, SaysWhatDoesNotDivideAndWhatWould) {
  EXPECT_THAT(Error("tp=4,pp=8"), HasSubstr("is 32, but there are 16"));
  EXPECT_THAT(Error("tp=16,dp=2"), HasSubstr("is 32, but there are 16"));
  Workload work = TestWorkload();
  work.accelerators = 12;
  EXPECT_THAT(Error("tp=3", work), HasSubstr("32 heads can't be split over tp 3: it can be 1, 2, 4 or 8"));
  EXPECT_THAT(Error("tp=1,pp=3", work),
              HasSubstr("16 layers can't be split over pp 3: it can be 1, 2, 4 or 8, or say"));
  EXPECT_THAT(Error("pp=2,vp=3"),
              HasSubstr("the 8 layers of a stage can't be split over vp 3: it can be 1, 2, 4 or 8"));
  EXPECT_THAT(Error("mbs=3"),
              HasSubstr("a batch of 64 can't be split over dp 16 in microbatches of 3: mbs can be 1, 2"));
  EXPECT_THAT(Error("ep=2"), HasSubstr("the model has no experts"));
  EXPECT_THAT(Error("pp=4,vp=2,mbs=8"), HasSubstr("multiple of pp 4; found 2"));
  EXPECT_THAT(Error("zero=4"), HasSubstr("zero must be 0 to 3, found 4"));
  work = TestWorkload();
  work.experts = 6, work.top_k = 2, work.expert_ffn = 64;
  EXPECT_THAT(Error("ep=4", work), HasSubstr("6 experts can't be split over ep 4"));
  EXPECT_THAT(Error("ep=3", work), HasSubstr("ep 3 must divide dp 16 x cp 1: it can be 1, 2 or 4"));
  work.experts = 32, work.accelerators = 16;
  EXPECT_THAT(Error("tp=4,ep=32", work), HasSubstr("ep 32 must divide dp 4 x cp 1 x tp 4: it can be 1, 2, 4, 8 or 16"));
  EXPECT_EQ(Error("tp=4,ep=16", work), "");
  EXPECT_EQ(Error("tp=4,ep=16,moe_chunks=4", work), "");
  EXPECT_THAT(Error("tp=4,ep=1,moe_chunks=4", work), HasSubstr("moe_chunks 4: only experts that are spread"));
  EXPECT_THAT(Error("tp=4,ep=16,moe_chunks=0", work), HasSubstr("moe_chunks must be at least 1, found 0"));
  EXPECT_THAT(Error("tp=4,ep=16,seq_parallel=0", work),
              HasSubstr("ep 16 must divide dp 4 x cp 1: it can be 1, 2 or 4"));
  EXPECT_EQ(Error("tp=4,ep=16,moe_gather=1", work), "");
  EXPECT_THAT(Error("tp=4,ep=16,moe_gather=1,seq_parallel=1", work), HasSubstr("seq_parallel 0; found 4, 16 and 1"));
  EXPECT_THAT(Error("tp=4,moe_gather=1", work), HasSubstr("it needs tp and ep of 2 or more"));
  EXPECT_THAT(Error("tp=4,ep=16,moe_gather=2", work), HasSubstr("moe_gather is 2; expected 0 or 1"));
  work = TestWorkload();
  EXPECT_EQ(Error("zero=3,shard=8", work), "");
  EXPECT_THAT(Error("zero=3,shard=3", work), HasSubstr("shard 3 must divide dp 16 x cp 1: it can be 1, 2, 4"));
  EXPECT_THAT(Error("zero=3,shard=-4", work), HasSubstr("expected a whole number"));
  EXPECT_THAT(Error("zero=1,shard=8", work), HasSubstr("it needs zero 3, found 1"));
  Workload mixture = work;
  mixture.experts = 160, mixture.top_k = 6, mixture.expert_ffn = 512, mixture.accelerators = 40;
  EXPECT_THAT(Error("tp=1,pp=1,ep=5,zero=3,shard=8", mixture), HasSubstr("shard 8: it must divide ep 5, or ep it"));
  work = TestWorkload();
  work.sequence = 100;
  EXPECT_THAT(Error("cp=8", work), HasSubstr("100 tokens of a sequence can't be split in 2 x cp 8 pieces"));
}

TEST(Layout, SchedulesAndUnevenStages) {
  Workload work = TestWorkload();
  ASSERT_TRUE(TakeLayout("pp=4,stages=5+4+4+3,schedule=zb-h1", work).ok());
  EXPECT_EQ(work.StageLayers(0), 5);
  EXPECT_THAT(LayoutText(work), HasSubstr("schedule zb-h1, stages 5+4+4+3"));
  EXPECT_THAT(Error("pp=4,stages=5+4+4"), HasSubstr("4 stages of 16 layers together"));
  EXPECT_THAT(Error("pp=4,stages=5+4+4+4"), HasSubstr("found 4 of 17"));
  EXPECT_THAT(Error("pp=2,stages=16+0"), HasSubstr("each at least 1"));
  EXPECT_THAT(Error("pp=2,stages=8+x"), HasSubstr("as 11+12+9"));
  ASSERT_TRUE(TakeLayout("pp=8,stages=1+2x5+3+2", work = TestWorkload()).ok());
  EXPECT_THAT(LayoutText(work), HasSubstr("stages 1+2x5+3+2"));
  EXPECT_THAT(Error("pp=4,schedule=dualpipe,mbs=8"), HasSubstr("at least 8 microbatches, an even number, found 2"));
  EXPECT_THAT(Error("schedule=zb-2p"), HasSubstr("needs pp above 1"));
}

TEST(Emit, FlagsOfMegatron) {
  Workload work = TestWorkload();
  ASSERT_TRUE(TakeLayout("tp=4,pp=2,vp=2,mbs=2,zero=1,recompute=full", work).ok());
  const auto flags = EmitFlags("megatron", work);
  ASSERT_TRUE(flags.ok());
  for (const char* flag :
       {"--tensor-model-parallel-size 4\n", "--pipeline-model-parallel-size 2\n", "--sequence-parallel\n",
        "--num-layers-per-virtual-pipeline-stage 4\n", "--micro-batch-size 2\n", "--global-batch-size 64\n",
        "--use-distributed-optimizer\n", "--recompute-granularity full\n", "--num-layers 16\n", "--seq-length 4096\n"})
    EXPECT_THAT(*flags, HasSubstr(flag));
  EXPECT_THAT(*flags, Not(HasSubstr("--swiglu")));
  work.schedule = Schedule::kDualPipe;
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("it has no schedule dualpipe"));
}

TEST(Emit, StagesRecomputationAndOffloading) {
  Workload work = TestWorkload();
  work.machine.host_link = work.machine.host_memory = work.machine.host_bandwidth = 1e12;
  ASSERT_TRUE(TakeLayout("pp=4,stages=3+5x2+3,zero=1,recompute=full:2,offload=optimizer", work).ok());
  const auto flags = EmitFlags("megatron", work);
  ASSERT_TRUE(flags.ok()) << flags.status();
  for (const char* flag : {"--decoder-first-pipeline-num-layers 3\n", "--decoder-last-pipeline-num-layers 3\n",
                           "--recompute-method block\n--recompute-num-layers 2\n", "--optimizer-cpu-offload\n"})
    EXPECT_THAT(*flags, HasSubstr(flag));
  EXPECT_THAT(*flags, Not(HasSubstr("--grad-reduce-in-bf16")));
  work.keeps.gradient_bytes = 2;
  EXPECT_THAT(*EmitFlags("megatron", work), HasSubstr("--grad-reduce-in-bf16\n"));
  work.zero = 0;
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("found zero 0"));
  work.offload = {.activations = true};
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("without a pipeline"));
  work.offload = {}, work.zero = 0;
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()),
              HasSubstr("all layers again or none, found 2 of a stage"));
  work.recompute = Recompute::kNone;
  const auto titan = EmitFlags("torchtitan", work);
  ASSERT_TRUE(titan.ok());
  EXPECT_THAT(*titan, HasSubstr("layers_per_stage = 5\npipeline_parallel_first_stage_less_layers = 2\n"));
  work.recompute = Recompute::kFull;
  work.stage_layers = {3, 4, 5, 4};
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("the others must be alike"));
  work.stage_layers.clear(), work.frozen.layers = 2;
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("no flag for frozen parts"));
}

// What the prediction counts on runs by a flag; what it does not has none.
TEST(Emit, OverlapAndAttention) {
  Workload work = TestWorkload();
  work.stack = "megatron-core";
  ASSERT_TRUE(TakeLayout("tp=2,pp=2,vp=4,mbs=1,zero=1", work).ok());
  const std::string flags = *EmitFlags("megatron", work);
  EXPECT_THAT(flags, HasSubstr("--tp-comm-overlap\n--use-distributed-optimizer\n--overlap-grad-reduce\n"
                               "--overlap-param-gather\n"));
  EXPECT_THAT(flags, HasSubstr("--attention-backend flash\n"));
  EXPECT_EQ(EmitNote("megatron", work), "");
  Workload shown = work;
  shown.hides_tensor = shown.hides_data = shown.hides_transfers = shown.flash = false;
  const std::string without = *EmitFlags("megatron", shown);
  EXPECT_THAT(without, HasSubstr("--no-overlap-p2p-communication\n--use-distributed-optimizer\n"));
  EXPECT_THAT(without, HasSubstr("--attention-backend unfused\n"));
  for (const char* flag : {"--tp-comm-overlap", "--overlap-"}) EXPECT_THAT(without, Not(HasSubstr(flag)));
  shown = work, shown.zero = 0;
  EXPECT_THAT(*EmitFlags("megatron", shown), HasSubstr("--tp-comm-overlap\n--overlap-grad-reduce\n--micro-"));
  shown.sequence_parallel = false, shown.stack = "nemo";
  EXPECT_THAT(*EmitFlags("megatron", shown), Not(HasSubstr("--tp-comm-overlap")));
  EXPECT_EQ(EmitNote("megatron", shown),
            "predicted with the habits of --stack nemo, not with those of megatron-core; the prediction hides "
            "communication of tensor parallelism, which --tp-comm-overlap does beside --sequence-parallel alone");
  ASSERT_TRUE(TakeLayout("tp=2,pp=1,vp=1,mbs=1,zero=3", work).ok());
  EXPECT_THAT(*EmitFlags("megatron", work),
              HasSubstr("--use-torch-fsdp2\n--no-gradient-accumulation-fusion\n--ckpt-format torch_dist\n"));
  EXPECT_THAT(EmitNote("megatron", work), HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS must not be 1"));
  EXPECT_EQ(EmitNote("torchtitan", work),
            "predicted with the habits of --stack megatron-core, not with those of torchtitan");
  work.hides_data = false;
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("found it shown"));
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()), HasSubstr("it has no flag that keeps communication"));
  work.flash = false;
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()), HasSubstr("its attention is fused"));
}

TEST(Emit, WhatAFrameworkAsserts) {
  Workload work = TestWorkload();
  ASSERT_TRUE(TakeLayout("tp=2,cp=2,mbs=1,zero=1", work).ok());
  const auto refusal = [](const char* framework, const Workload& of) {
    return Message(EmitFlags(framework, of).status());
  };
  Workload unfused = work;
  unfused.flash = false;
  EXPECT_THAT(refusal("megatron", unfused), HasSubstr("unfused attention is without cp there, found cp 2"));
  unfused.dp *= unfused.cp, unfused.cp = 1;
  EXPECT_EQ(refusal("megatron", unfused), "");
  Workload shared = work;
  shared.zero = 3;
  EXPECT_EQ(refusal("megatron", shared), "");
  shared.tied_embeddings = true;
  EXPECT_THAT(refusal("megatron", shared), HasSubstr("zero 3 (--use-torch-fsdp2) is for an output layer of its own"));
  Workload few = work;
  few.kv_heads = 1, few.zero = 3;
  EXPECT_EQ(refusal("megatron", few), "");
  EXPECT_THAT(refusal("torchtitan", few), HasSubstr("whole heads of keys and values, found 1 over tp 2"));
  few.kv_heads = 2;
  EXPECT_EQ(refusal("torchtitan", few), "");
  few.kv_heads = 1, few.latent.kv_rank = 512;
  EXPECT_EQ(refusal("torchtitan", few), "") << "latent attention has none to split";
}

TEST(Emit, MixturesAndLatentAttention) {
  Workload work = TestWorkload();
  work.experts = 8, work.top_k = 2, work.expert_ffn = 64, work.shared_experts = 2, work.dense_layers = 3;
  work.latent = {.q_rank = 96, .kv_rank = 32, .rope = 16, .value_dim = 48}, work.head_dim = 80;
  ASSERT_TRUE(TakeLayout("tp=2,ep=8", work).ok());
  const auto flags = EmitFlags("megatron", work);
  ASSERT_TRUE(flags.ok()) << flags.status();
  for (const char* flag :
       {"--expert-model-parallel-size 8\n--moe-token-dispatcher-type alltoall\n--expert-tensor-parallel-size 1\n",
        "--multi-latent-attention\n--q-lora-rank 96\n--kv-lora-rank 32\n--qk-head-dim 64\n--qk-pos-emb-head-dim 16\n",
        "--moe-shared-expert-intermediate-size 128\n--moe-layer-freq \"([0]*3+[1]*13)\"\n"})
    EXPECT_THAT(*flags, HasSubstr(flag));
  EXPECT_THAT(*flags, Not(HasSubstr("--kv-channels")));
  work.experts_every = 3, work.window = {128, 12};
  const auto some = EmitFlags("megatron", work);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(*some, HasSubstr("--moe-layer-freq \"([0]*3+([0]*2+[1]*1)*4+[0]*1)\"\n"));
  EXPECT_THAT(*some, HasSubstr("--window-size \"(127,0)\"\n--window-attn-skip-freq 4\n"));
  work.window.layers = 9;
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("windows in 9 of 16 layers"));
  work.experts_every = 1, work.window = {};
  work.moe_chunks = 2;
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("found moe_chunks 2"));
  ASSERT_TRUE(TakeLayout("tp=2,ep=8,moe_chunks=1,moe_gather=1", work).ok());
  EXPECT_THAT(LayoutText(work), HasSubstr("seq_parallel 0, moe_gather 1"));
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("found moe_gather 1"));
  work.causal = false;
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("not of vision transformers"));
}

TEST(Emit, FlagsOfTorchtitan) {
  Workload work = TestWorkload();
  ASSERT_TRUE(TakeLayout("tp=2,pp=2,mbs=2,zero=3", work).ok());
  const auto flags = EmitFlags("torchtitan", work);
  ASSERT_TRUE(flags.ok());
  for (const char* line : {"tensor_parallel_degree = 2\n", "data_parallel_shard_degree = 4\n",
                           "pipeline_parallel_schedule = \"1F1B\"\n", "local_batch_size = 16\n", "mode = \"none\"\n"})
    EXPECT_THAT(*flags, HasSubstr(line));
  ASSERT_TRUE(TakeLayout("tp=2,pp=1,mbs=2,zero=3", work).ok());
  EXPECT_THAT(*EmitFlags("torchtitan", work), HasSubstr("local_batch_size = 2\n"));
  work.offload = {.optimizer = true, .weights = true};
  EXPECT_THAT(*EmitFlags("torchtitan", work), HasSubstr("enable_cpu_offload = true\n\n[parallelism]\n"));
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("keeps weights on the device"));
  work.offload = {.optimizer = true};
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()), HasSubstr("or nothing; found optimizer"));
  work.offload = {};
  ASSERT_TRUE(TakeLayout("tp=8,pp=2,zero=1", work).ok());
  EXPECT_TRUE(EmitFlags("torchtitan", work).ok()) << "there is nobody to share with";
  work.pp = 1, work.accelerators = 8, work.offload = {.optimizer = true, .weights = true};
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()), HasSubstr("but there is one"));
  work.accelerators = 16, work.offload = {};
  ASSERT_TRUE(TakeLayout("tp=2,pp=1,mbs=2,zero=3,shard=4", work).ok());
  EXPECT_THAT(*EmitFlags("torchtitan", work),
              HasSubstr("data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"));
  EXPECT_THAT(Message(EmitFlags("megatron", work).status()), HasSubstr("found shard 4"));
  work.zero = 1;
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()), HasSubstr("found zero 1"));
  work.zero = 3, work.sequence_parallel = false;
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()), HasSubstr("found seq_parallel 0"));
  work.experts = 8, work.top_k = 2, work.expert_ffn = 64, work.ep = 2, work.tp = 4, work.dp = 4,
  work.sequence_parallel = true;
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()),
              HasSubstr("ep must be a multiple of cp 1 x tp 4, found 2"));
  work.ep = 4, work.recompute = Recompute::kSelective;
  EXPECT_THAT(*EmitFlags("torchtitan", work), HasSubstr("selective_ac_option = \"op\"\n"));
  work.training = Training::kLora;
  EXPECT_THAT(Message(EmitFlags("torchtitan", work).status()), HasSubstr("none for adapters"));
  EXPECT_THAT(Message(EmitFlags("jax", work).status()), HasSubstr("expected megatron or torchtitan"));
}

}  // namespace
}  // namespace lockstep::plan
