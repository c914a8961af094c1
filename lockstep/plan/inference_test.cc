#include "lockstep/plan/inference.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

// 16 layers of 12 h^2 weights in 16 bits, the cache of 8 sequences, and the output layer, at the rate of streaming
// kernels of 2 TB/s.
TEST(Inference, ATokenByHand) {
  Workload work = TestWorkload();
  work.accelerators = 1;
  Rates rates;
  rates.kernel = 0;
  const Requests asked{.batch = 8, .prompt = 1000, .output = 200};
  const InferenceTime time = PredictInference(work, rates, asked);
  const double weights = 16 * 12 * 4096.0 * 4096 * 2, cache = 16 * 2 * 2 * 4096.0 * 1100 * 8;
  EXPECT_THAT(time.token, DoubleNear((weights + cache + 50'000 * 4096.0 * 2) / (2e12 * rates.stream), 1e-9));
  EXPECT_THAT(time.weights, DoubleNear(weights + 2 * 50'000 * 4096.0 * 2, 1));
  EXPECT_THAT(time.cache, DoubleNear(16 * 2 * 2 * 4096.0 * 1200 * 8, 1));
}

// Of 16 layers 12 keep the last 100 tokens alone.
TEST(Inference, WindowsAndExpertsInSomeLayers) {
  Workload work = TestWorkload();
  work.accelerators = 1, work.window = {100, 12};
  const Requests asked{.batch = 8, .prompt = 1000, .output = 200};
  EXPECT_THAT(PredictInference(work, Rates{}, asked).cache, DoubleNear(2 * 2 * 4096.0 * (4 * 1200 + 12 * 100) * 8, 1));
  work.experts = 8, work.top_k = 2, work.expert_ffn = 16'384, work.experts_every = 4;
  const double parameters = 16 * 4 * 4096.0 * 4096 + 12 * 8 * 4096.0 * 4096 + 4 * (8 * 8 * 4096.0 * 4096 + 8 * 4096);
  EXPECT_THAT(PredictInference(work, Rates{}, asked).weights, DoubleNear(2 * (parameters + 2 * 50'000 * 4096.0), 1));
}

TEST(Inference, MoreTensorParallelismAnswersSooner) {
  Workload work = TestWorkload();
  work.accelerators = 8;
  const Requests asked{.batch = 4, .prompt = 2048, .output = 128};
  const InferenceTime one = PredictInference(work, Rates{}, asked);
  work.tp = 8;
  const InferenceTime eight = PredictInference(work, Rates{}, asked);
  EXPECT_LT(eight.token, one.token);
  EXPECT_LT(eight.first_token, one.first_token);
  EXPECT_LT(eight.memory(), one.memory());
}

TEST(Inference, TheSearchSaysWhatFits) {
  Workload work = TestWorkload();
  work.accelerators = 8;
  const auto choices = SearchInference(work, Rates{}, {.batch = 4, .prompt = 2048, .output = 128});
  ASSERT_FALSE(choices.empty());
  for (const InferenceChoice& one : choices) {
    EXPECT_LE(one.tokens_per_s, choices.front().tokens_per_s);
    EXPECT_LE(one.time.memory(), work.machine.memory);
    EXPECT_LE(one.workload.tp * one.workload.pp * one.workload.dp, 8);
  }
  work.machine.memory = 4e9;
  EXPECT_THAT(Message(InferenceReport(work, Rates{}, {.batch = 4, .prompt = 2048, .output = 128}, 5).status()),
              HasSubstr("what would do: 64 accelerators"));
  work.machine.memory = 3e9;
  EXPECT_THAT(Message(InferenceReport(work, Rates{}, {.batch = 4, .prompt = 2048, .output = 128}, 5).status()),
              HasSubstr("no smaller batch, other precision or number of accelerators would do"));
  // 17 layers of 0.4 GB on five accelerators: four stages of four at most, and one of one.
  work.layers = 17, work.accelerators = 5, work.machine.memory = 6e9, work.heads = work.kv_heads = 1;
  const auto report = InferenceReport(work, Rates{}, {.batch = 1, .prompt = 128, .output = 8}, 1);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ((*report)["best"][0]["layout"], "tp 1, pp 5, replicas 1");
  EXPECT_THAT(Message(InferenceReport(work, Rates{}, {.batch = 4096, .prompt = 128, .output = 8}, 1).status()),
              HasSubstr("what would do: --batch "));
}

}  // namespace
}  // namespace lockstep::plan
