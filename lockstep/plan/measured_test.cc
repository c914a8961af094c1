#include "lockstep/plan/measured.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/plan/calibrate.h"
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
    const std::string path = testing::TempDir() + "measured.csv";
    std::ofstream(path) << kColumns << rows;
    const auto machines = ReadMachines(LOCKSTEP_PRESETS "/plan/machines.toml");
    EXPECT_TRUE(machines.ok()) << machines.status();
    auto table = ReadMeasured(path, *machines);
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }
  std::string Why(const std::string& row) {
    const MeasuredTable table = Read(row);
    return table.skipped.size() == 1 ? table.skipped[0].why : "";
  }
};

// Each machine has rates that can be read.
TEST(Presets, OfPlanAreWhole) {
  const auto machines = ReadMachines(LOCKSTEP_PRESETS "/plan/machines.toml");
  ASSERT_TRUE(machines.ok()) << machines.status();
  for (const char* name : {"a100-80gb", "a100-40gb", "h100-80gb", "b200", "b300", "gb200", "gb300"}) {
    const auto machine = machines->Find(name);
    ASSERT_TRUE(machine.ok()) << machine.status();
    const auto rates = ReadRates(LOCKSTEP_PRESETS "/plan/rates_" + machine->rates + ".toml");
    EXPECT_TRUE(rates.ok()) << rates.status();
  }
  EXPECT_THAT(Message(machines->Find("h100-80g").status()), HasSubstr("the nearest is \"h100-80gb\""));
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

TEST_F(Measured, WhatCantBeUsedIsSkippedWithTheReason) {
  EXPECT_THAT(Why("a,f,TPU,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n"), HasSubstr("no machine \"TPU\""));
  EXPECT_THAT(Why("a,f,b200,8,,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n"), HasSubstr("column layers is empty"));
  EXPECT_THAT(Why("a,f,b200,8,2.5,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n"), HasSubstr("expected a whole number"));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,-1,,\n"), HasSubstr("step_time_s is \"-1\""));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,3,1,0,,,bf16,1,,\n"), HasSubstr("is 6, but there are 8"));
  EXPECT_THAT(Why("a,f,b200,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,,,\n"), HasSubstr("nothing was measured"));
  EXPECT_THAT(Why("a,f,A100-80GB-SXM,8,2,64,256,0,4,128,8,1,1,1,0,,,fp8,1,,\n"), HasSubstr("has no fp8"));
}

// Runs whose times come from known rates: a fit finds rates that predict as well, whatever it began with.
TEST_F(Measured, AFitFindsWhatMadeTheTimes) {
  std::string rows;
  for (const int layers : {16, 32, 48})
    for (const int hidden : {2048, 4096, 8192})
      for (const int batch : {1, 4})
        rows += fmt::format("{0}-{1}-{2},f,H100-80GB-SXM,8,{0},{1},{3},0,32,2048,{4},{2},1,1,1,none,flash,bf16,1,,\n",
                            layers, hidden, batch, 4 * hidden, 8 * batch * 4);
  const MeasuredTable table = Read(rows);
  Rates truth;
  truth.gemm = .8, truth.fused_bytes = 28, truth.half_k = 900;
  std::vector<MeasuredRun> made;
  for (const MeasuredRun& run : table.runs)
    made.emplace_back(run.row(), run.id(), run.family(), run.workload(),
                      MeasuredRun::Values{.step_s = PredictStep(run.workload(), truth).total().value});
  Runs runs;
  for (const MeasuredRun& run : made) runs.push_back(&run);
  EXPECT_GT(MeanError(runs, Rates{}), .05);
  const Rates fitted = Calibrate(runs, Rates{});
  EXPECT_LT(MeanError(runs, fitted), .01);
  EXPECT_LT(fitted.residual_high, .1);
  EXPECT_EQ(RatesText(fitted, ""), RatesText(Calibrate(runs, Rates{}), "")) << "the same again";
}

TEST_F(Measured, AReportOfWhatIsKnown) {
  MeasuredTable table;
  const MeasuredTable read = Read(
      "a,f,b200,8,2,1024,4096,0,16,2048,64,1,1,1,0,none,flash,bf16,1,,\n"
      "b,f,TPU,8,2,64,256,0,4,128,8,1,1,1,0,,,bf16,1,,\n");
  const Rates rates{.residual_low = -.2, .residual_high = .2};
  const double predicted = PredictStep(read.runs[0].workload(), rates).total().value;
  table.skipped = read.skipped;
  table.runs.emplace_back(2, "a", "f", read.runs[0].workload(), MeasuredRun::Values{.step_s = predicted / 1.1});
  const Json report = ValidateReport(table, {{"b200", rates}}, {.rows = true});
  EXPECT_EQ(report["n"], 2);
  EXPECT_EQ(report["predicted"], 1);
  EXPECT_EQ(report["skipped"][0]["row"], 3);
  EXPECT_THAT(report["mape"].get<double>(), DoubleNear(.1, 1e-9));
  EXPECT_THAT(report["bias"].get<double>(), DoubleNear(.1, 1e-9));
  EXPECT_EQ(report["coverage80"], 1.0);
  EXPECT_EQ(report["families"]["f"]["n"], 1);
  EXPECT_THAT(report["rows"][0]["step_time_s"].get<double>(), DoubleNear(predicted, 1e-12));
  EXPECT_EQ(ValidateReport(table, {}, {})["predicted"], 0) << "no rates for that machine";
}

}  // namespace
}  // namespace lockstep::plan
