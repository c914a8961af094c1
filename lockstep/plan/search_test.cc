#include "lockstep/plan/search.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "lockstep/plan/model_file.h"
#include "lockstep/plan/report.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

Workload Base() {
  Workload work;
  work.layers = 16;
  work.hidden = 4096;
  work.ffn = 16'384;
  work.heads = work.kv_heads = 32;
  work.head_dim = 128;
  work.vocabulary = 50'000;
  work.sequence = 4096;
  work.global_batch = 64;
  work.accelerators = 16;
  work.machine = {.name = "m",
                  .rates = "m",
                  .bf16 = 300e12,
                  .fp8 = 0,
                  .fp4 = 0,
                  .memory = 40e9,
                  .bandwidth = 2e12,
                  .scale_up = 300e9,
                  .nic = 25e9,
                  .domain = 8};
  return work;
}

// Written apart from the search: every combination of these, whatever divides.
TEST(Search, FindsWhatTryingEverythingFinds) {
  const Rates rates;
  double best = 1e9;
  for (const int tp : {1, 2, 4, 8})
    for (const int pp : {1, 2, 4, 8, 16})
      for (const int cp : {1, 2, 4, 8, 16})
        for (const int microbatch : {1, 2, 4, 8, 16, 32, 64})
          for (const int chunks : {1, 2, 4, 8, 16})
            for (const int zero : {1, 3})
              for (const Recompute recompute : {Recompute::kNone, Recompute::kFull, Recompute::kAsNeeded}) {
                Workload w = Base();
                w.tp = tp, w.pp = pp, w.cp = cp, w.microbatch = microbatch, w.chunks = chunks, w.zero = zero;
                w.recompute = recompute, w.sequence_parallel = tp > 1;
                w.dp = 16 / (tp * pp * cp);
                if (!w.Validate().ok() || 64 % (w.dp * microbatch) != 0) continue;
                if (16 / pp % chunks != 0 || (pp == 1 && chunks > 1)) continue;
                if (chunks > 1 && w.Microbatches() % pp != 0) continue;
                if (zero == 3 && (pp > 1 || w.dp * cp == 1)) continue;
                if (PredictMemory(w).total() > w.machine.memory) continue;
                best = std::min(best, PredictStep(w, rates).total().value);
              }
  const SearchResult result = Search(Base(), rates, {.keep = 3});
  ASSERT_EQ(result.best.size(), 3u);
  EXPECT_DOUBLE_EQ(result.best[0].step.total().value, best);
  EXPECT_LE(result.best[0].step.total().value, result.best[1].step.total().value);
  for (const Candidate& one : result.best) {
    EXPECT_TRUE(one.workload.Validate().ok());
    EXPECT_LE(one.memory.total(), one.workload.machine.memory);
  }
  for (size_t i = 1; i < result.pareto.size(); ++i) {
    EXPECT_GT(result.pareto[i].memory.total(), result.pareto[i - 1].memory.total());
    EXPECT_LT(result.pareto[i].step.total().value, result.pareto[i - 1].step.total().value);
  }
  EXPECT_DOUBLE_EQ(result.pareto.back().step.total().value, best);
}

TEST(Search, SaysWhatNeedsLeastWhereNothingFits) {
  Workload work = Base();
  work.machine.memory = 5e9;
  const SearchResult result = Search(work, Rates{}, {});
  EXPECT_TRUE(result.best.empty());
  ASSERT_EQ(result.nearest.size(), 1u);
  EXPECT_GT(result.nearest[0].memory.total(), 5e9);
}

TEST(Report, APredictionAddsUp) {
  Workload work = Base();
  work.dp = 16;
  const Json report = PredictionReport(Predict(work, Rates{}), Rates{});
  double sum = 0;
  for (const auto& [part, seconds] : report["breakdown"].items()) sum += seconds.get<double>();
  EXPECT_THAT(sum, DoubleNear(report["step_time_s"].get<double>(), 1e-9));
  EXPECT_LT(report["lo80"], report["step_time_s"]);
  EXPECT_LT(report["sensitivities"]["machine.bf16_tflops"].get<double>(), -.3);
  EXPECT_FALSE(report["sensitivities"].contains("machine.fp8_tflops")) << "it has none";
}

TEST(ModelFile, OfHuggingFace) {
  Workload work;
  const auto status = TakeHuggingFace(
      R"({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
          "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
          "hidden_act": "silu"})",
      "config.json", work);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(work.head_dim, 128);
  EXPECT_EQ(work.expert_ffn, 14336);
  EXPECT_TRUE(work.gated);
  EXPECT_THAT(Message(TakeHuggingFace(R"({"hidden_size": 4096})", "c.json", work)), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(Message(TakeHuggingFace("[", "c.json", work)), HasSubstr("no JSON object"));
}

TEST(ModelFile, ALayoutByItsKeys) {
  Workload work = Base();
  ASSERT_TRUE(TakeLayout("tp=4,pp=2,mbs=2,recompute=full", work).ok());
  EXPECT_EQ(work.dp, 2);
  EXPECT_TRUE(work.sequence_parallel);
  EXPECT_THAT(Message(TakeLayout("tp", work)), HasSubstr("\"tp\" is no KEY=VALUE"));
  EXPECT_THAT(Message(TakeLayout("xp=2", work)), HasSubstr("there is no \"xp\""));
  EXPECT_THAT(Message(TakeLayout("tp=two", work)), HasSubstr("expected a whole number"));
  EXPECT_THAT(Message(TakeLayout("tp=4,pp=8", work)), HasSubstr("is 64, but there are 16"));
}

}  // namespace
}  // namespace lockstep::plan
