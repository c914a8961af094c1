#include "lockstep/plan/madmax.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/plan/madmax_report.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

// Two nodes of two devices. With round figures: 1 TFLOP/s, 1 GB/s of memory, 10 GB/s within a node, 1 between nodes.
Json System() {
  return {{"num_devices", 4},      {"num_nodes", 2},   {"f16_flops", 2e12},     {"flops_util", .5},  {"mem_bw", 2e9},
          {"mem_bw_util", .5},     {"num_nvlinks", 2}, {"bw_per_nvlink", 20e9}, {"nvlink_util", .5}, {"ibroce_util", 1},
          {"num_ibroce_ports", 2}, {"ibroce_bw", 2e9}, {"ar_perc_intra", .5}};
}
Json Dlrm() {
  return {{"type", "DLRM"},    {"bytes_per_nonemb_param", 2}, {"bytes_per_emb_param", 2}, {"mlp_dim", 1000},
          {"num_tables", 10},  {"num_bot_mlp_layers", 2},     {"num_top_mlp_layers", 2},  {"emb_dim", 50},
          {"pooling_size", 10}};
}
Json Task(const char* type) {
  return {{"type", type},           {"mlp_parallel", {"ddp"}},    {"mlp_parallel_degree", {4}},
          {"emb_parallel", {"mp"}}, {"emb_parallel_degree", {4}}, {"local_mlp_bs", 1000},
          {"local_emb_bs", 4000}};
}

// A layer: 2 * 1000^2 * 1000 flops, 2 ms. Tables: 10 * 10 * 50 * 2 * 4000 / 4 bytes, 10 ms; exchanged: 2 * (10 MB / 4)
// over 1 GB/s, 5 ms. The top waits for that, the bottom is done long before.
TEST(Madmax, ARecommendationModelByHand) {
  const auto times = PredictMadmax(Dlrm(), System(), Task("inference"), MadmaxVariant::kDlrm);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_THAT(times->gemm.value, DoubleNear(8e-3, 1e-12));
  EXPECT_THAT(times->embedding.value, DoubleNear(10e-3, 1e-12));
  EXPECT_THAT(times->all_to_all.value, DoubleNear(5e-3, 1e-12));
  EXPECT_THAT(times->iteration.value, DoubleNear((10 + 5 + 4) * 1e-3, 1e-12)) << "the bottom within the exchange";
  EXPECT_THAT(times->exposed().value, DoubleNear(1e-3, 1e-12));
}

// Backward: two top layers of 4 ms; each sums 2 MB of gradients over 5.5 GB/s, then 5 ms of exchange, beside which the
// bottom runs; its sums come behind the exchange, beside the 10 ms of the tables.
TEST(Madmax, AStepByHand) {
  const auto times = PredictMadmax(Dlrm(), System(), Task("pretrain"), MadmaxVariant::kDlrm);
  ASSERT_TRUE(times.ok()) << times.status();
  const double sum = 2e6 / 5.5e9;
  EXPECT_THAT(times->all_reduce.value, DoubleNear(4 * sum, 1e-12));
  EXPECT_THAT(times->iteration.value, DoubleNear(19e-3 + 8e-3 + std::max(sum + 5e-3, 8e-3) + 10e-3, 1e-12));
}

// Tables within a node of two and copied between: 20 ms of look-ups; 2 * (20 MB / 2) over 10 GB/s exchanged within, and
// their gradients, 20 MB, summed over 5.5 GB/s behind that.
TEST(Madmax, TablesThatAreCopiedAreSummed) {
  Json task = Task("pretrain");
  task["emb_parallel"] = {"mp", "ddp"}, task["emb_parallel_degree"] = {2, 2}, task["local_emb_bs"] = 2000;
  task["local_mlp_bs"] = 1000;
  const auto times = PredictMadmax(Dlrm(), System(), task, MadmaxVariant::kDlrm);
  ASSERT_TRUE(times.ok()) << times.status();
  const double layer = 2e6 / 5.5e9, read = 10 * 10 * 50 * 2 * 2000 / 2.0;
  EXPECT_THAT(times->all_to_all.value, DoubleNear(2 * read / 10e9, 1e-12));
  EXPECT_THAT(times->all_reduce.value, DoubleNear(4 * layer + read / 5.5e9, 1e-12));
  task["emb_parallel"] = {"ddp"}, task["emb_parallel_degree"] = {4}, task["local_emb_bs"] = 1000;
  const auto copied = PredictMadmax(Dlrm(), System(), task, MadmaxVariant::kDlrm);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->all_to_all.value, 0);
  EXPECT_THAT(copied->all_reduce.value, DoubleNear(4 * layer + 10e6 / 5.5e9, 1e-12));
  EXPECT_THAT(copied->iteration.value, DoubleNear(10e-3 + 8e-3 + 16e-3 + 10e-3, 1e-12)) << "beside the bottom";
}

TEST(Madmax, WhatIsFrozenHasNoBackwardPass) {
  Json task = Task("finetune");
  task["freeze_top_mlp"] = false, task["freeze_bot_mlp"] = task["freeze_emb"] = true;
  const auto times = PredictMadmax(Dlrm(), System(), task, MadmaxVariant::kDlrm);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_THAT(times->iteration.value, DoubleNear(19e-3 + 8e-3 + 2e6 / 5.5e9, 1e-12));
}

// Nothing of an all-reduce stays within a node: it is as slow as the network.
TEST(Madmax, AnAllReduceMayLieBetweenNodesAlone) {
  Json system = System();
  system["ar_perc_intra"] = 0;
  const auto times = PredictMadmax(Dlrm(), system, Task("pretrain"), MadmaxVariant::kDlrm);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_THAT(times->all_reduce.value, DoubleNear(4 * 2e6 / 1e9, 1e-12));
}

TEST(Madmax, OnlyWhatMadmaxAllows) {
  const auto error = [](const Json& changed) {
    Json task = Task("pretrain"), system = System(), model = Dlrm();
    for (const auto& [key, value] : changed.items())
      (system.contains(key) ? system : key.starts_with("bytes") ? model : task)[key] = value;
    return Message(PredictMadmax(model, system, task, MadmaxVariant::kDlrm).status());
  };
  EXPECT_EQ(error({{"mlp_parallel", {"fsdp", "tp"}}, {"mlp_parallel_degree", {2, 2}}}),
            "\"local_emb_bs\" makes a batch of 4000, that of the layers one of 2000; expected the same");
  EXPECT_THAT(error({{"mlp_parallel", {"ddp", "ddp"}}, {"mlp_parallel_degree", {2, 2}}}),
              HasSubstr("has \"ddp\" twice"));
  EXPECT_THAT(error({{"mlp_parallel", {"ddp", "fsdp"}}, {"mlp_parallel_degree", {2, 2}}}),
              HasSubstr("\"fsdp\" can only be the first"));
  EXPECT_THAT(error({{"mlp_parallel", {"tp", "ddp"}}, {"mlp_parallel_degree", {4, 1}}}),
              HasSubstr("\"ddp\" of degree 1"));
  EXPECT_THAT(error({{"mlp_parallel_degree", {2.5}}}), HasSubstr("of degree 2.5"));
  EXPECT_THAT(error({{"mlp_parallel_degree", {2}}}), HasSubstr("is of 2 devices; expected all 4"));
  EXPECT_THAT(error({{"num_devices", 5}}), HasSubstr("expected as many whole devices in each node"));
  EXPECT_THAT(error({{"bytes_per_nonemb_param", 3}}), HasSubstr("is 3; expected 1, 2, 4 or 8"));
  EXPECT_THAT(error({{"ar_perc_intra", 1.5}}), HasSubstr("\"ar_perc_intra\" is 1.5; expected 0 to 1"));
  EXPECT_THAT(error({{"type", "sleep"}}), HasSubstr("expected pretrain, finetune or inference"));
  EXPECT_THAT(error({{"freeze_emb", 1}}), HasSubstr("\"freeze_emb\" is 1; expected true or false"));
  EXPECT_THAT(error({{"freeze_emb", true}}), HasSubstr("\"freeze_emb\" is of finetune, not of pretrain"));
  Json system = System(), task = Task("pretrain");
  system["num_devices"] = 8, task["mlp_parallel"] = {"tp", "ddp"}, task["mlp_parallel_degree"] = {2, 4};
  EXPECT_THAT(Message(PredictMadmax(Dlrm(), system, task, MadmaxVariant::kDlrm).status()),
              HasSubstr("begins with 2; expected the 4 devices of a node"));
  EXPECT_THAT(Message(PredictMadmax(Dlrm(), System(), Task("pretrain"), MadmaxVariant::kImages).status()),
              HasSubstr("the variant is another kind's"));
}

// What nobody's output is known of is not compared.
TEST(Madmax, FrozenPartsThatAreNotKnown) {
  Json task = Task("finetune");
  task["freeze_top_mlp"] = true;
  EXPECT_EQ(PredictMadmax(Dlrm(), System(), task, MadmaxVariant::kDlrm).status().code(),
            absl::StatusCode::kUnimplemented);
  const Json model = {{"type", "LLM"},
                      {"bytes_per_nonemb_param", 2},
                      {"bytes_per_emb_param", 2},
                      {"attention_dim", 1000},
                      {"transformer_fc_dim", 4000},
                      {"num_transformer_layers", 2},
                      {"transformer_seq_len", 10}};
  const Json tuned = {
      {"type", "finetune"},      {"transformer_parallel", {"ddp"}}, {"transformer_parallel_degree", {4}},
      {"emb_parallel", {"ddp"}}, {"emb_parallel_degree", {4}},      {"local_transformer_bs", 1},
      {"local_emb_bs", 1}};
  const auto predict = [&](const char* key, const Json& value) {
    Json one = tuned;
    one[key] = value;
    return PredictMadmax(model, System(), one, MadmaxVariant::kGatherAhead).status().code();
  };
  EXPECT_EQ(predict("freeze_emb", false), absl::StatusCode::kOk);
  for (const char* key : {"freeze_emb", "freeze_transformer"})
    EXPECT_EQ(predict(key, true), absl::StatusCode::kUnimplemented) << key;
  EXPECT_EQ(predict("min_frozen_layer", 1), absl::StatusCode::kUnimplemented);
}

TEST(Madmax, SaysWhatIsWrong) {
  const auto error = [](const Json& model, const Json& system, const Json& task) {
    return Message(PredictMadmax(model, system, task, MadmaxVariant::kDlrm).status());
  };
  Json system = System();
  system["mem_bw"] = -1;
  EXPECT_THAT(error(Dlrm(), system, Task("pretrain")), HasSubstr("\"mem_bw\" is -1; expected more than zero"));
  Json task = Task("pretrain");
  task.erase("local_mlp_bs");
  EXPECT_THAT(error(Dlrm(), System(), task), HasSubstr("\"local_mlp_bs\" is missing"));
  task = Task("pretrain");
  task["mlp_parallel"] = {"zero"};
  EXPECT_THAT(error(Dlrm(), System(), task), HasSubstr("strategy 0 is \"zero\""));
  EXPECT_THAT(error({{"type", "RNN"}, {"bytes_per_nonemb_param", 2}}, System(), task), HasSubstr("kind \"RNN\""));
}

TEST(Madmax, EveryRowOfTheAuthorsProgram) {
  const std::string folder = LOCKSTEP_DATA "/perf/";
  if (!std::filesystem::exists(folder + "madmax_golden.csv")) GTEST_SKIP() << "no " << folder << "madmax_golden.csv";
  const auto report = CompareMadmax(folder + "madmax_configs.json", folder + "madmax_golden.csv");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->at("rows"), 1123);
  EXPECT_LE(report->at("max_rel_iter_ms").get<double>(), 1e-9) << report->dump(1);
  EXPECT_LE(report->at("max_rel_exposed_ms").get<double>(), 1e-9) << report->dump(1);
}

}  // namespace
}  // namespace lockstep::plan
