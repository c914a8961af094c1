#include "lockstep/plan/measured.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "lockstep/plan/calibrate.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/step.h"
#include "lockstep/plan/validate.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kColumns[] =
    "id,family,hardware,gpus,layers,hidden,ffn,gated,heads,seq,gbs,mbs,tp,pp,zero,recompute,attention,precision,"
    "step_time_s,mem_gib,notes\n";

class Measured : public testing::Test {
 protected:
  MeasuredTable Read(const std::string& rows) {
    auto table = ReadMeasured(folder_.Write("measured.csv", kColumns + rows), known_);
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }
  std::string Why(const std::string& row) {
    const MeasuredTable table = Read(row);
    return table.skipped.size() == 1 ? table.skipped[0].why : "";
  }
  const TestFolder folder_;
  const Known known_ = ReadKnown(LOCKSTEP_PRESETS).value();
};

// Each machine has rates that can be read.
TEST(Presets, OfPlanAreWhole) {
  const auto known = ReadKnown(LOCKSTEP_PRESETS);
  ASSERT_TRUE(known.ok()) << known.status();
  const auto calibration = ReadCalibration(LOCKSTEP_PRESETS "/plan");
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  for (const Machines::Named& named : known->machines.all())
    EXPECT_TRUE(calibration->hardware.contains(named.machine.rates)) << named.machine.name;
  EXPECT_THAT(Message(known->machines.Find("h100-80g").status()), HasSubstr("h100-80gb"));
  size_t of_hardware = 0;
  for (const RateField& field : RateFields()) of_hardware += field.scope == Scope::kHardware;
  EXPECT_LE(of_hardware, 30u);
  EXPECT_LE(RateFields().size() - of_hardware, 30u);
}

TEST_F(Measured, ExpertsAreSplitWhereTokensAreSent) {
  const std::string path = folder_ / "experts.csv";
  const auto ep_of = [&](const std::string& framework, int experts, int ep) {
    std::ofstream(path)
        << "hardware,gpus,layers,hidden,ffn,heads,seq,gbs,mbs,zero,experts,topk,moe_ffn,ep,framework,step_time_s\n"
        << "H100-80GB-SXM,64,36,2880,2880,64,4096,512,2,3," << experts << ",4,2880," << ep << "," << framework
        << ",4.3\n";
    const auto table = ReadMeasured(path, known_);
    return table.ok() && table->runs.size() == 1 ? table->runs[0].workload().ep : 0;
  };
  EXPECT_EQ(ep_of("NeMo AutoModel TE + DeepEP", 128, 1), 64);
  EXPECT_EQ(ep_of("NeMo AutoModel TE + DeepEP", 32, 1), 32);
  EXPECT_EQ(ep_of("NeMo AutoModel TE + DeepEP", 128, 8), 8);
  EXPECT_EQ(ep_of("NeMo AutoModel TE + DeepEP", 0, 1), 1);
  EXPECT_EQ(ep_of("NeMo AutoModel TE", 128, 1), 1);
}

// 70 billion parameters on each of 64 accelerators with 288 GB; of a framework that has FSDP, and tables without it.
TEST_F(Measured, WhatCantBeOtherwiseIsSharded) {
  const std::string path = folder_ / "sharded.csv";
  const auto zero_of = [&](const char* framework, int layers, int pp) {
    std::ofstream(path)
        << "hardware,gpus,layers,hidden,ffn,gated,heads,kv_heads,seq,gbs,mbs,pp,zero,recompute,framework,step_time_s\n"
        << "GB300-NVL72,64," << layers << ",8192,28672,1,64,8,8192,256,2," << pp << ",1,unknown," << framework
        << ",4.7\n";
    const auto table = ReadMeasured(path, known_);
    return table.ok() && table->runs.size() == 1 ? table->runs[0].workload().zero : -1;
  };
  EXPECT_EQ(zero_of("Megatron-Bridge 26.02.01", 80, 1), 3);
  EXPECT_EQ(zero_of("Megatron-Bridge 26.02.01", 8, 1), 1);
  EXPECT_EQ(zero_of("Megatron-Bridge 26.02.01", 160, 2), 1);
  EXPECT_EQ(zero_of("NeMo/Megatron-Core", 80, 1), 1);
  EXPECT_EQ(zero_of("Megatron-Bridge 26.02.01", 4000, 1), 1) << "fits neither way";
  ASSERT_EQ(zero_of("Megatron-Bridge 26.02.01", 80, 1), 3);
  const Json report = ValidateReport(*ReadMeasured(path, known_), Calibration{}, {});
  EXPECT_EQ(report["assumed"][0]["row"], 2);
  EXPECT_EQ(report["assumed"][0]["what"], "zero 1, which would not fit, is read as FSDP's 3");
}

TEST_F(Measured, ARowIsAWorkload) {
  const MeasuredTable table = Read("a,f,H100-80GB-SXM,64,80,8192,28672,1,64,8192,128,1,4,8,1,none,flash,fp8,10.1,,\n");
  ASSERT_EQ(table.runs.size(), 1u);
  const Workload& work = table.runs[0].workload();
  EXPECT_EQ(work.dp, 2);
  EXPECT_EQ(work.machine.rates, "h100");
  EXPECT_EQ(work.precision, Precision::kFp8);
  EXPECT_TRUE(work.sequence_parallel);
  EXPECT_EQ(table.runs[0].Measured().step_s, 10.1);
}

// A mixture on 64 accelerators, with other columns than the usual ones behind it.
class OtherColumns : public Measured {
 protected:
  MeasuredTable With(const std::string& columns, const std::string& values,
                     const std::string& sizes = "32,4096,14336") {
    const std::string path = folder_ / "other.csv";
    std::ofstream(path) << "layers,hidden,ffn,gated,heads,kv_heads,seq,gbs,gpus," << columns << "\n"
                        << sizes << ",1,32,8,4096,256,64," << values << "\n";
    auto table = ReadMeasured(path, known_);
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }
  Workload Of(const std::string& columns, const std::string& values, const std::string& sizes = "32,4096,14336") {
    const MeasuredTable table = With(columns, values, sizes);
    EXPECT_EQ(table.runs.size(), 1u) << (table.skipped.empty() ? "" : table.skipped[0].why);
    return table.runs.empty() ? Workload{} : table.runs[0].workload();
  }
};

TEST_F(OtherColumns, WordsAreReadHoweverTheyAreWritten) {
  const Workload work = Of("hardware,precision,recompute,zero,vp,seq_parallel,task,attention,tp,dp",
                           "h100,BF16-mixed,Full,unknown,n/a,true,QLoRA,Unfused, 2,32");
  EXPECT_EQ(work.machine.name, "h100-80gb");
  EXPECT_EQ(work.recompute, Recompute::kFull);
  EXPECT_EQ(work.training, Training::kLora);
  EXPECT_EQ(std::tuple(work.zero, work.chunks, work.tp, work.flash), std::tuple(0, 1, 2, false));
  EXPECT_TRUE(work.sequence_parallel);
  EXPECT_EQ(Of("hardware,precision", "B200-SXM,MXFP8").precision, Precision::kFp8);
  EXPECT_EQ(Of("hardware,precision", "B200-SXM,bf16_with_fp8_current_scaling_mixed").precision, Precision::kFp8);
}

TEST_F(OtherColumns, NamesOfColumnsAndNotesMayBeWrittenInCapitals) {
  const Workload work = Of("Hardware,Precision, MBS ,RECOMPUTE,Framework,Notes",
                           "h100,FP8,2,full,nemo,\"Tied embeddings, ASYNCTP, cuda_launch_blocking, RowWise\"");
  EXPECT_EQ(std::tuple(work.precision, work.microbatch, work.recompute, work.stack),
            std::tuple(Precision::kFp8, 2, Recompute::kFull, "nemo"));
  EXPECT_TRUE(work.tied_embeddings && work.async_tensor && work.blocking_launches && work.row_scales);
  EXPECT_FALSE(Of("hardware,recompute,notes", "h100,full,untied embeddings").tied_embeddings);
  EXPECT_TRUE(With("hardware,zero,notes", "h100,3,oom in step 1").runs.at(0).Measured().out_of_memory);
  std::ofstream(folder_ / "twice.csv") << "hardware,Tp,tp\n";
  EXPECT_THAT(Message(ReadMeasured(folder_ / "twice.csv", known_).status()), HasSubstr("column \"tp\" twice"));
}

TEST_F(OtherColumns, WordsOfAttention) {
  for (const char* word : {"", "unknown", "fused", "Flash", "flash-attn-3", "sdpa-flash", "TorchSDPA", "FlexAttn"})
    EXPECT_TRUE(Of("hardware,recompute,attention", fmt::format("h100,full,{}", word)).flash) << word;
  for (const char* word : {"unfused", "eager", "Math", "sdpa-math", "naive"})
    EXPECT_FALSE(Of("hardware,recompute,attention", fmt::format("h100,full,{}", word)).flash) << word;
  for (const char* word : {"none", "non-flash", "0", "ring"})
    EXPECT_THAT(With("hardware,attention", fmt::format("h100,{}", word)).skipped.at(0).why,
                HasSubstr(fmt::format("column attention is \"{}\"; expected flash, sdpa, fused or unfused", word)));
}

TEST_F(OtherColumns, WordsOfPrecision) {
  for (const char* word : {"bf16", "bfloat16", "torch.bfloat16", "Float16", "half", "amp_bf16", "fp16"})
    EXPECT_EQ(Of("hardware,precision", fmt::format("b200,{}", word)).precision, Precision::kBf16) << word;
  for (const char* word : {"fp32", "tf32", "float32", "float", "half-fp32"})
    EXPECT_THAT(With("hardware,precision", fmt::format("b200,{}", word)).skipped.at(0).why,
                HasSubstr(fmt::format("column precision is \"{}\"", word)));
}

// 32 layers on one accelerator: what nobody says of recomputation is as much as it takes, and no more.
TEST_F(OtherColumns, RecomputationThatNobodyTellsOfIsWhatFits) {
  const auto recomputed = [&](const char* word, int microbatch) {
    const MeasuredTable table =
        With("hardware,zero,recompute,mbs,notes", fmt::format("A100-40GB-SXM,3,{},{},OOM", word, microbatch));
    EXPECT_EQ(table.runs.size(), 1u) << word;
    if (table.runs.empty()) return std::pair(-1, std::string());
    EXPECT_EQ(table.runs[0].workload().recompute, Recompute::kAsNeeded) << word;
    EXPECT_EQ(table.runs[0].guesses().fit, !table.assumed.empty()) << word;
    return std::pair(RecomputedLayers(table.runs[0].workload()), table.assumed.empty() ? "" : table.assumed[0].why);
  };
  for (const char* word : {"", "unknown", "na", "N/A", "-", "?", "nan"}) {
    EXPECT_EQ(recomputed(word, 1), std::pair(0, std::string())) << word;
    const auto [layers, why] = recomputed(word, 4);
    EXPECT_GT(layers, 0) << word;
    EXPECT_EQ(why, fmt::format("recompute, of which nothing is said, is of {} layers of a stage: with fewer it would "
                               "not fit",
                               layers));
  }
  EXPECT_EQ(Of("hardware,zero,mbs", "A100-40GB-SXM,3,4").recompute, Recompute::kAsNeeded) << "no such column";
}

TEST_F(OtherColumns, OnlyWhatTrains) {
  for (const char* task : {"inference", "Prefill", "decoding"})
    EXPECT_THAT(With("hardware,task", fmt::format("b200,{}", task)).skipped.at(0).why, HasSubstr("one that trains"));
  EXPECT_EQ(Of("hardware,task", "b200,sft").training, Training::kFull);
}

TEST_F(OtherColumns, SizesMayBeMissingWhereModelsAreNamed) {
  const auto read = [&](const std::string& columns, const std::string& values) {
    std::ofstream(folder_ / "sizes.csv") << columns << ",seq,gbs,gpus\n" << values << ",4096,64,8\n";
    return ReadMeasured(folder_ / "sizes.csv", known_);
  };
  const auto named = read("hardware,model", "B200-SXM,Qwen2.5-7B");
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_EQ(named->runs.size(), 1u);
  EXPECT_EQ(named->runs[0].workload().layers, 28);
  EXPECT_THAT(read("hardware,model", "B200-SXM,nobody's")->skipped.at(0).why, HasSubstr("column layers is empty"));
  EXPECT_THAT(Message(read("hardware", "B200-SXM").status()), HasSubstr("there is no column layers, and no model"));
}

TEST_F(OtherColumns, WhatAFrameworkOrAccumulationSays) {
  const MeasuredTable table = With("hardware,framework,recompute", "H100-80GB-SXM,torchtitan FSDP2,unknown");
  EXPECT_EQ(table.runs.at(0).workload().zero, 3);
  EXPECT_EQ(table.assumed.at(0).why, "zero, of which nothing is said, is FSDP's 3");
  EXPECT_EQ(Of("hardware,recompute,mbs,tp", "H100-80GB-SXM,full,1,1").zero, 1) << "fits so, and not otherwise";
  EXPECT_EQ(Of("hardware,recompute,mbs,zero", "A100-40GB-SXM,full,1,0").zero, 0) << "as it says";
  EXPECT_EQ(Of("hardware,zero,ga", "B200-SXM,1,2").microbatch, 2);
  EXPECT_THAT(With("hardware,zero,ga", "B200-SXM,1,3").skipped.at(0).why,
              HasSubstr("column ga is 3, which does not divide the 4 sequences of a rank"));
  const MeasuredTable both = With("hardware,zero,mbs,ga", "B200-SXM,1,2,4");
  EXPECT_EQ(both.assumed.at(0).why, "ga 4, which with dp 64 and mbs 2 makes 512 sequences, not gbs 256, is left aside");
  EXPECT_TRUE(With("hardware,zero,mbs,ga", "B200-SXM,1,2,2").assumed.empty());
  EXPECT_EQ(Of("hardware,recompute,zero", "A100-40GB-SXM,none,3").microbatch, 1) << "the most that fit";
  const Workload shared = Of("hardware,recompute", "A100-40GB-SXM,full"),
                 said = Of("hardware,recompute,zero", "A100-40GB-SXM,full,1");
  EXPECT_EQ(std::pair(shared.zero, shared.microbatch), std::pair(1, said.microbatch)) << "first what is shared";
}

TEST_F(OtherColumns, ExpertsOfAMixture) {
  const char* const columns = "hardware,experts,topk,tp,dp,pp,ep";
  EXPECT_EQ(Of(columns, "B200-SXM,8,2,1,64,1,8").expert_ffn, 14336) << "as wide as any MLP";
  EXPECT_THAT(With(columns, "B200-SXM,8,2,1,8,8,3").skipped.at(0).why, HasSubstr("8 experts can't be split over ep 3"));
  EXPECT_THAT(With(columns, "B200-SXM,128,2,1,8,8,64").skipped.at(0).why,
              HasSubstr("ep 64 must divide dp 8 x cp 1: it can be"));
  const MeasuredTable split = With(columns + std::string(",zero,mbs"), "H100-80GB-SXM,8,2,8,8,1,1,1,1");
  EXPECT_EQ(split.runs.at(0).workload().ep, 8);
  EXPECT_EQ(split.assumed.at(0).why, "ep 1, which would not fit, is read as 8: experts are split over tp, too");
}

// Over all replicas that divide them, whether that fits or not; then over tp as of what is said.
TEST_F(OtherColumns, ExpertsThatNobodySaysAreSplitAreSpread) {
  const auto ep_of = [&](const char* layout, const char* ep, const char* experts = "8") {
    const MeasuredTable table = With("hardware,framework,experts,topk,tp,dp,zero,mbs,recompute,ep",
                                     fmt::format("GB300-NVL72,nemo,{},2,{},1,1,full,{}", experts, layout, ep));
    return std::pair(table.runs.at(0).workload().ep, table.assumed.empty() ? "" : table.assumed[0].why);
  };
  EXPECT_EQ(ep_of("1,64", ""), std::pair(8, std::string("ep, of which nothing is said, is read as 8")));
  EXPECT_EQ(ep_of("1,64", "unknown").first, 8);
  EXPECT_EQ(ep_of("8,8", "", "12").first, 4);
  EXPECT_EQ(ep_of("1,64", "1"), std::pair(1, std::string())) << "as it says";
}

// Attention that is not fused says nothing of the sequence.
TEST_F(OtherColumns, ASequenceThatNobodySaysIsSplitIsSoWhereOnlyThatFits) {
  const auto split = [&](const char* said, const char* sizes) {
    const MeasuredTable table = With("hardware,attention,tp,zero,mbs,recompute,seq_parallel",
                                     fmt::format("A100-80GB-SXM,unfused,8,1,1,none,{}", said), sizes);
    const std::string why = table.assumed.empty() ? "" : table.assumed[0].why;
    return std::pair(table.runs.at(0).workload().sequence_parallel, why);
  };
  EXPECT_EQ(split("", "116,4096,16384"),
            std::pair(true, std::string("seq_parallel 0, which would not fit, is read as 1")));
  EXPECT_EQ(split("0", "116,4096,16384"), std::pair(false, std::string()));
  EXPECT_EQ(split("", "16,4096,16384"), std::pair(false, std::string()));
}

TEST_F(OtherColumns, AModelHasManyNames) {
  const auto dense_layers = [&](const std::string& model, const char* hidden = "7168") {
    return Of("hardware,experts,topk,moe_ffn,ep,model", "GB200-NVL72,256,8,2048,64," + model,
              std::string("61,") + hidden + ",18432")
        .dense_layers;
  };
  for (const char* model :
       {"DeepSeekV3", "DeepSeek-V3", "deepseek_v3", "DeepSeek V3 671B", "deepseek-ai/DeepSeek-V3.1"})
    EXPECT_EQ(dense_layers(model), 3) << model;
  EXPECT_EQ(dense_layers("DeepSeek-V3", "2048"), 0) << "another one of that name";
  EXPECT_EQ(dense_layers("V3"), 0);
  EXPECT_EQ(known_.ModelNamed("Qwen2-57B-A14B-Instruct"), "") << "and not Qwen2.5 7B";
  EXPECT_EQ(known_.ModelNamed("openai/gpt-oss-120b"), "gpt-oss-120b");
}

TEST_F(OtherColumns, AModelWithoutSizesIsAPresetOfItsName) {
  const MeasuredTable table = With("hardware,model", "B200-SXM,Qwen/Qwen2.5 7B Instruct", ",,");
  ASSERT_EQ(table.runs.size(), 1u);
  const Workload& work = table.runs[0].workload();
  EXPECT_EQ(std::tuple(work.layers, work.kv_heads, work.sequence), std::tuple(28, 4, 4096));
  EXPECT_TRUE(table.runs[0].guesses().sizes) << "it teaches nothing";
  EXPECT_THAT(table.assumed.at(0).why, HasSubstr("those of the preset qwen2.5-7b"));
  EXPECT_THAT(With("hardware,model", "B200-SXM,Nobody 7B", ",,").skipped.at(0).why,
              HasSubstr("column layers is empty"));
}

TEST_F(OtherColumns, WhatWasNotMeasuredIsPredicted) {
  const MeasuredTable table = With("hardware,dp,tp", "B200-SXM,8,8");
  const Json report = ValidateReport(table, ReadCalibration(LOCKSTEP_PRESETS "/plan").value(), {.rows = true});
  EXPECT_EQ(report["predicted"], 1);
  EXPECT_GT(report["rows"][0]["step_time_s"], 0);
  EXPECT_EQ(report["mape"], Json());
  EXPECT_EQ(report["unmeasured"], 1);
  EXPECT_EQ(report["memory"]["feasible_rejected"], 0) << "nobody says that it ran";
  EXPECT_EQ(report["memory"]["mape"], Json()) << "of no memory";
}

// Whether it would have fitted can't be seen from what was chosen so that it fits.
TEST_F(OtherColumns, WhatIsMadeToFitIsNoWitness) {
  const auto labels = [&](const char* zero) {
    const MeasuredTable table =
        With("hardware,recompute,mbs,zero,notes", fmt::format("A100-40GB-SXM,full,1,{},OOM", zero));
    return ValidateReport(table, ReadCalibration(LOCKSTEP_PRESETS "/plan").value(), {})["memory"]["oom_total"];
  };
  EXPECT_EQ(labels("0"), 1);
  EXPECT_EQ(labels(""), 0);
}

TEST_F(OtherColumns, ARunThatDidNotFitMayHaveZeroForNothing) {
  const auto with = [&](const char* notes) {
    return With("hardware,recompute,mbs,zero,step_time_s,mem_gib,notes",
                fmt::format("A100-40GB-SXM,full,1,0,0,0.0,{}", notes));
  };
  const MeasuredTable table = with("OOM");
  const Json report = ValidateReport(table, ReadCalibration(LOCKSTEP_PRESETS "/plan").value(), {});
  EXPECT_EQ(report["memory"]["oom_total"], 1);
  EXPECT_EQ(report["memory"]["n"], 0);
  EXPECT_EQ(report["unmeasured"], 0);
  EXPECT_THAT(with("it ran").skipped.at(0).why, HasSubstr("column step_time_s is 0; expected a number above 0"));
}

// 126 layers and the two at the ends are 16 for each of eight stages; 125 are no number of that kind.
TEST_F(Measured, EmbeddingAndOutputLayerMayTakeTheirPlace) {
  const auto stages = [&](int layers) {
    return Read(fmt::format("a,f,b200,64,{},8192,28672,1,64,8192,128,1,1,8,1,none,flash,bf16,10.1,,\n", layers))
        .runs.at(0)
        .workload()
        .stage_layers;
  };
  EXPECT_THAT(stages(126), ElementsAre(15, 16, 16, 16, 16, 16, 16, 15));
  EXPECT_TRUE(stages(125).empty());
  EXPECT_TRUE(stages(128).empty());
}

TEST_F(Measured, WhatCantBeUsedIsSkippedWithTheReason) {
  EXPECT_THAT(Why("a,f,TPU,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n"), HasSubstr("no machine \"TPU\""));
  EXPECT_THAT(Why("a,f,b200,8,,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n"), HasSubstr("column layers is empty"));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,4194304,1,0,,,bf16,1,,\n"),
              HasSubstr("column tp is 4194304; expected at most 1048576"));
  EXPECT_THAT(Why("a,f,b200,8,2.5,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n"), HasSubstr("expected a whole number"));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,-1,,\n"), HasSubstr("step_time_s is \"-1\""));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,0,,\n"),
              HasSubstr("column step_time_s is 0; expected a number above 0, or nothing"));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,3,1,0,,,bf16,1,,\n"), HasSubstr("is 6, but there are 8"));
  EXPECT_THAT(Why("a,f,b200,16,2,64,256,0,4,128,64,1,3,1,0,,,bf16,1,,\n"), HasSubstr("is 15, but there are 16"));
  EXPECT_THAT(Why("a,f,A100-80GB-SXM,8,2,64,256,0,4,128,8,1,1,1,0,,,fp8,1,,\n"), HasSubstr("has no fp8"));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,1,1,7,,,bf16,1,,\n"), HasSubstr("zero must be 0 to 3, found 7"));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,1,1,0,some,,bf16,1,,\n"), HasSubstr("recompute is \"some\""));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,1,1,0,,,int4,1,,\n"), HasSubstr("precision is \"int4\""));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,12,1,1,1,0,,,bf16,1,,\n"), HasSubstr("gbs is 12, which dp 8 does not"));
}

// DeepSeek V3 has 61 layers, of which three are dense: of four layers, one.
TEST_F(Measured, AModelThatIsKnownIsCompleted) {
  Workload work;
  work.experts = 256, work.layers = 61, work.hidden = 7168;
  known_.models.Complete("DeepSeekV3", work);
  EXPECT_EQ(std::pair(work.dense_layers, work.shared_experts), std::pair(3, 1));
  work.heads = work.kv_heads = 128;
  const double query = 1536 * (7168 + 128 * 192.0), keys = 7168 * 576.0 + 512 * 128 * 256.0;
  EXPECT_EQ(work.AttentionParameters(), query + keys + 128 * 128 * 7168.0) << "its attention is latent";
  work.layers = 4;
  known_.models.Complete("DeepSeekV3", work);
  EXPECT_EQ(work.dense_layers, 1);
  Workload windowed;
  windowed.experts = 128, windowed.layers = 36, windowed.hidden = 2880;
  known_.models.Complete("GPT OSS 120B", windowed);
  EXPECT_EQ(std::pair(windowed.window.layers, windowed.window.tokens), std::pair(18, 128));
  Workload other;
  other.experts = 8, other.layers = 32;
  known_.models.Complete("Mixtral", other);
  EXPECT_EQ(other.dense_layers, 0);
}

TEST_F(Measured, AFrameworkIsAStack) {
  const auto stack = [&](const char* framework, StackHints hints) {
    return known_.stacks.OfFramework(framework, hints).name;
  };
  EXPECT_EQ(stack("NeMo/Megatron-Core", {}), "nemo");
  EXPECT_EQ(stack("NeMo AutoModel TE + DeepEP", {.sharded = true}), "automodel");
  EXPECT_EQ(stack("Megatron-LM 2021", {.unfused = true}), "megatron-lm-2021");
  EXPECT_EQ(stack("Megatron-LM", {}), "megatron-core") << "the same name, but its attention is fused";
  EXPECT_EQ(stack("torchtitan", {.unfused = true}), "torchtitan") << "only its attention is another";
  EXPECT_EQ(stack("NeMo/Megatron-LM", {.unfused = true}), "nemo");
  EXPECT_EQ(stack("DeepSpeed ZeRO-3", {.sharded = true}), "deepspeed-zero");
  EXPECT_TRUE(known_.stacks.OfFramework("nobody's", {.unfused = true}).memory.unfused);
  EXPECT_EQ(stack("a JAX stack, paxml", {.sharded = true}), "xla");
  EXPECT_TRUE(known_.stacks.OfFramework("nobody's", {.sharded = true}).memory.eager);
  EXPECT_FALSE(known_.stacks.OfFramework("nobody's", {}).memory.eager);
}

// Runs whose times come from known rates: a fit finds rates that predict as well, whatever it began with.
TEST_F(Measured, AFitFindsWhatMadeTheTimes) {
  std::string rows;
  for (const int layers : {16, 32, 48})
    for (const int hidden : {2048, 4096, 8192})
      for (const int batch : {1, 4})
        rows +=
            fmt::format("{0}-{1}-{2},f{0},H100-80GB-SXM,8,{0},{1},{3},0,32,2048,{4},{2},1,1,1,none,flash,bf16,1,,\n",
                        layers, hidden, batch, 4 * hidden, 8 * batch * 4);
  const MeasuredTable table = Read(rows);
  Rates truth;
  truth.gemm = .85, truth.glue_bytes = 48, truth.half_k = 900;
  std::vector<MeasuredRun> made;
  for (const MeasuredRun& run : table.runs)
    made.emplace_back(run.row(), run.id(), run.family(), run.workload(),
                      MeasuredRun::Values{.step_s = PredictStep(run.workload(), truth).total().value});
  Runs runs;
  for (const MeasuredRun& run : made) runs.push_back(&run);
  const Calibration usual{.hardware = {{"h100", Rates{}}}};
  EXPECT_GT(MeanError(runs, usual), .05);
  const Calibrated calibrated = Calibrate(runs, known_, nullptr);
  const Calibration& fitted = calibrated.calibration;
  ASSERT_EQ(calibrated.without_family.size(), runs.size());
  for (const LeftOut& one : calibrated.without_fold) EXPECT_LT(std::abs(one.residual), .1);
  EXPECT_LT(MeanError(runs, fitted), .01);
  EXPECT_LT(fitted.spreads.at("f16"), .05);
  EXPECT_EQ(StacksText(fitted.stacks), StacksText(Fit(runs, known_, nullptr).stacks)) << "the same again";
  EXPECT_TRUE(fitted.hardware.contains("gb300")) << "which no run has: by what is common";
  EXPECT_LT(MeanError(runs, Fit({runs[0], runs[5]}, known_, &fitted)), .03) << "begins where others ended";
}

TEST_F(Measured, ACalibrationIsAFolder) {
  Calibration calibration{.hardware = {{"h100", Rates{.gemm = .5}}}, .stacks = known_.stacks};
  calibration.spreads["f"] = .125;
  const std::string folder = folder_ / "calibration";
  ASSERT_TRUE(WriteCalibration(calibration, folder, "made by a test").ok());
  const auto read = ReadCalibration(folder);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->hardware.at("h100").gemm, .5);
  EXPECT_EQ(read->spreads, calibration.spreads);
  EXPECT_EQ(StacksText(read->stacks), StacksText(known_.stacks));
  EXPECT_THAT(Message(ReadCalibration(folder + "/none").status()), HasSubstr("lockstep plan calibrate"));
}

TEST_F(Measured, AReportOfWhatIsKnown) {
  MeasuredTable table;
  const MeasuredTable read = Read(
      "a,f,b200,8,2,1024,4096,0,16,2048,64,1,1,1,0,none,flash,bf16,1,,\n"
      "b,f,TPU,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n");
  const Rates rates{.scatter = .2};
  const double predicted = PredictStep(read.runs[0].workload(), rates).total().value;
  table.skipped = read.skipped;
  table.runs.emplace_back(2, "a", "f", read.runs[0].workload(), MeasuredRun::Values{.step_s = predicted / 1.1});
  Calibration calibration{.hardware = {{"b200", rates}}};
  const Json report = ValidateReport(table, calibration, {.rows = true});
  EXPECT_EQ(report["n"], 2);
  EXPECT_EQ(report["predicted"], 1);
  EXPECT_EQ(report["skipped"][0]["row"], 3);
  EXPECT_THAT(report["mape"].get<double>(), DoubleNear(.1, 1e-9));
  EXPECT_THAT(report["bias"].get<double>(), DoubleNear(.1, 1e-9));
  EXPECT_EQ(report["coverage80"], 1.0);
  EXPECT_EQ(report["families"]["f"]["n"], 1);
  EXPECT_THAT(report["rows"][0]["step_time_s"].get<double>(), DoubleNear(predicted, 1e-12));
  EXPECT_EQ(ValidateReport(table, {}, {})["predicted"], 0) << "no rates for that machine";
  calibration.spreads["f"] = .05;
  EXPECT_EQ(ValidateReport(table, calibration, {})["coverage80"], 0.0) << "a family that was fitted to has its own";
}

// Five layouts of one model, measured as predicted but for two that change places; one was measured twice.
TEST_F(Measured, LayoutsAreRanked) {
  std::string rows;
  for (const auto& [tp, pp] : {std::pair(1, 1), {2, 1}, {4, 1}, {8, 1}, {1, 2}})
    rows +=
        fmt::format("{0}-{1},f,H100-80GB-SXM,8,32,4096,16384,0,32,2048,64,1,{0},{1},1,none,flash,bf16,1,,\n", tp, pp);
  const MeasuredTable read = Read(rows);
  ASSERT_EQ(read.runs.size(), 5u);
  const Calibration calibration{.hardware = {{"h100", Rates{}}}};
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < 5; ++i) order.emplace_back(PredictStep(read.runs[i].workload(), Rates{}).total().value, i);
  std::sort(order.begin(), order.end());
  MeasuredTable table;
  const auto add = [&](size_t place, double seconds) {
    const MeasuredRun& run = read.runs[order[place].second];
    table.runs.emplace_back(run.row(), run.id(), run.family(), run.workload(), MeasuredRun::Values{.step_s = seconds});
  };
  for (const auto& [place, seconds] : {std::pair(0, 1.1), {1, 1.0}, {2, 2.0}, {3, 3.0}, {4, 3.9}, {4, 4.1}})
    add(static_cast<size_t>(place), seconds);
  const Json ranking = ValidateReport(table, calibration, {})["ranking"];
  ASSERT_EQ(ranking.size(), 1u);
  EXPECT_EQ(ranking[0]["n"], 5);
  EXPECT_THAT(ranking[0]["tau"].get<double>(), DoubleNear(.8, 1e-9)) << "one of ten pairs the other way round";
  EXPECT_THAT(ranking[0]["regret"].get<double>(), DoubleNear(.1, 1e-9));
}

}  // namespace
}  // namespace lockstep::plan
