#include "lockstep/plan/memory.h"

#include <gmock/gmock.h>

#include "lockstep/plan/round_figures.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

TEST(Workload, SaysWhatNoModelCanBe) {
  const auto error = [](auto change) {
    Workload work = Small();
    work.accelerators = 3;  // whatever the layout
    change(work);
    return Message(work.ValidateModel());
  };
  EXPECT_EQ(error([](Workload&) {}), "");
  EXPECT_THAT(error([](Workload& w) { w.kv_heads = 3; }), HasSubstr("16 heads can't share 3"));
  EXPECT_THAT(error([](Workload& w) { w.kv_heads = 32; }), HasSubstr("16 heads can't share 32"));
  EXPECT_THAT(error([](Workload& w) { w.experts = 8, w.top_k = 9, w.expert_ffn = 64; }), HasSubstr("a topk of 1 to 8"));
  EXPECT_THAT(error([](Workload& w) { w.experts = 8, w.top_k = 2, w.expert_ffn = 64, w.dense_layers = 99; }),
              HasSubstr("dense_layers must be 0 to 8"));
}

TEST(Workload, SaysWhatDoesNotFit) {
  const auto error = [](auto change) {
    Workload work = Small();
    change(work);
    return Message(work.Validate());
  };
  EXPECT_EQ(error([](Workload&) {}), "");
  EXPECT_THAT(error([](Workload& w) { w.tp = 2; }), HasSubstr("tp 2 x pp 1 x dp 8 x cp 1 is 16, but there are 8"));
  EXPECT_THAT(error([](Workload& w) { w.pp = 16, w.dp = 1, w.accelerators = 16; }), HasSubstr("8 layers"));
  EXPECT_THAT(error([](Workload& w) { w.tp = 3, w.dp = 1, w.accelerators = 3; }), HasSubstr("16 heads"));
  EXPECT_THAT(error([](Workload& w) { w.global_batch = 4; }), HasSubstr("a batch of 4"));
  EXPECT_THAT(error([](Workload& w) { w.hidden = 0; }), HasSubstr("hidden must be at least 1, found 0"));
  EXPECT_THAT(error([](Workload& w) { w.experts = 8, w.top_k = 2, w.expert_ffn = 64, w.ep = 3; }), HasSubstr("ep 3"));
}

// Weights and gradients in 16 and 32 bits, Adam's 12 bytes a parameter shared by eight.
TEST(Memory, StatesByHand) {
  Workload work = Small();
  work.zero = 1;
  const double parameters = 8 * 12 * 1024.0 * 1024 + 2 * 32'000 * 1024.0;
  EXPECT_THAT(PredictMemory(work).states, DoubleNear(parameters * 7.5, 1));
  work.zero = 3;
  EXPECT_THAT(PredictMemory(work).states, DoubleNear(parameters * 2, 1));
}

// The embedding is the output layer too; between stages each end has one.
// Per token and hidden unit 8 bytes of norms and 2 of each column of queries, keys, values and output; where positions
// turn queries and keys, what they came from as well. Gated, the MLP keeps three columns of its width instead of two.
TEST(Memory, WhatAttentionKeeps) {
  Workload work = Small();
  const double unit = 2048.0 * 1024;
  EXPECT_EQ(PredictMemory(work).activations, 8 * unit * (8 + 2 * 4 + 2 * 2 * 4));
  work.kv_heads = 4, work.gated = true;
  EXPECT_EQ(PredictMemory(work).activations, 8 * unit * (8 + 2 * (3 + 3 / 4.0) + 2 * 3 * 4));
  work.precision = Precision::kFp8;  // what norms and the MLP give to products, and once more what attention gives
  EXPECT_EQ(PredictMemory(work).activations, 8 * unit * (6 + 2 * (3 + 3 / 4.0) + 1 + (2 * 2 + 1) * 4));
  work.keeps.eager = true;
  EXPECT_EQ(PredictMemory(work).activations, 8 * unit * (8 + 2 * (3 + 3 / 4.0) + 2 * 3 * 4))
      << "made anew from 16 bits";
  work.keeps.eager = false, work.precision = Precision::kBf16;
  // Queries and keys of 96, the 64 of them that keys have beside the values, values and output of 64; ranks twice.
  work.kv_heads = 16, work.head_dim = 96, work.latent = {.q_rank = 256, .kv_rank = 128, .rope = 32, .value_dim = 64};
  const double columns = 16 * (2 * 96 + 64 + 2 * 64.0) + 2 * (256 + 128.0) + 32;
  EXPECT_EQ(PredictMemory(work).activations, 8 * unit * (8 + 2 * columns / 1024 + 2 * 3 * 4));
}

TEST(Memory, TiedEmbeddings) {
  Workload work = Small();
  work.zero = 3;
  const double apart = PredictMemory(work).states;
  work.tied_embeddings = true;
  EXPECT_THAT(apart - PredictMemory(work).states, DoubleNear(32'000 * 1024.0 * 2, 1));
  work.pp = 2, work.dp = 4;
  const double tied = PredictMemory(work).states;
  work.tied_embeddings = false;
  EXPECT_EQ(PredictMemory(work).states, tied);
}

// The first of eight layers has no experts; a pipeline keeps whole weights and gradients beside their shares.
TEST(Memory, DenseLayersAndPipelinesOfShards) {
  Workload work = Small();
  work.experts = 8, work.top_k = 2, work.expert_ffn = 4096, work.ep = 8, work.zero = 1;
  const double expert = 2 * 1024.0 * 4096;
  const double all = PredictMemory(work).states;
  work.dense_layers = 1;
  const double parameters = expert - 1024.0 * 8;  // of an MLP, for that of the router
  EXPECT_THAT(all - PredictMemory(work).states, DoubleNear(18 * expert - 7.5 * parameters, 1));
  work = Small();
  work.pp = 2, work.dp = 4, work.zero = 3;
  const double held = 4 * 12 * 1024.0 * 1024 + 32'000 * 1024.0;
  EXPECT_THAT(PredictMemory(work).states, DoubleNear(held * (4 + 6), 1));
}

// Every other of eight layers has experts, so of stages of three, three and two the second has most of them.
TEST(Memory, ExpertsInEveryOtherLayer) {
  Workload work = Mixture();
  work.experts_every = 2, work.ep = work.dp = 1, work.accelerators = work.pp = 3, work.stage_layers = {3, 3, 2};
  const double attention = 4 * 1024.0 * 1024, mlp = 2 * 1024.0 * 4096, experts = 8 * mlp + 8 * 1024;
  EXPECT_THAT(PredictMemory(work).states, DoubleNear(18 * (3 * attention + 2 * experts + mlp), 1));
}

// A model whose first three layers have no experts, all of them frozen: no expert is.
TEST(Memory, FrozenLayersAreTheFirstOnes) {
  Workload work = Mixture();
  work.accelerators = work.dp = work.ep = 1, work.zero = 0;
  work.dense_layers = 3, work.frozen.layers = 3;
  const double all = PredictMemory(work).states;
  const double dense = 4 * 1024.0 * 1024 + 2 * 1024.0 * 4096;
  work.frozen.layers = 0;
  EXPECT_THAT(PredictMemory(work).states - all, DoubleNear(16 * 3 * dense, 1));
}

// DualPipe holds frozen weights twice, as others.
TEST(Memory, AdaptersBesideTwoCopies) {
  Workload work = Mixture();
  work.training = Training::kLora;
  work.accelerators = work.pp = 2, work.dp = work.ep = 1, work.zero = 0;
  const double once = PredictMemory(work).states;
  work.schedule = Schedule::kDualPipe;
  EXPECT_THAT(PredictMemory(work).states / once, DoubleNear(4.2 / 2.2, 1e-6));
}

// Of sixteen ranks two have the same expert: frozen or not, they share it, and all share the rest.
TEST(Memory, FrozenExpertsAreSharedByWhoHasThem) {
  Workload work = Mixture();
  work.accelerators = work.dp = 16, work.zero = 3;
  const double expert = 8 * 2 * 1024.0 * 4096, embedding = 32'000 * 1024.0;
  const double rest = work.Parameters() - 8 * expert;
  work.training = Training::kLora;
  EXPECT_THAT(PredictMemory(work).states, DoubleNear(2.2 * (rest / 16 + expert / 2), 1));
  work.training = Training::kFull, work.frozen.layers = 8;
  EXPECT_THAT(PredictMemory(work).states,
              DoubleNear(2 * ((rest - 2 * embedding) / 16 + expert / 2) + 16 * 2 * embedding / 16, 1));
}

TEST(Memory, RecomputationAndPipelines) {
  Workload work = Small();
  const double all = PredictMemory(work).activations;
  work.recompute = Recompute::kFull;
  EXPECT_LT(PredictMemory(work).activations, all / 3);
  work = Small();
  work.pp = 4, work.dp = 2;
  EXPECT_THAT(PredictMemory(work).activations, DoubleNear(all, 1)) << "a quarter of the layers, four microbatches";
}

}  // namespace
}  // namespace lockstep::plan
