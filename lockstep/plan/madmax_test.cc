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
