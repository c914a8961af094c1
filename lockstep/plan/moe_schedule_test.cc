#include "lockstep/plan/moe_schedule.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

// One value of one byte, products and gathers for nothing: exchanges of half of 4 bytes, 1 ms and 1 ms a byte.
TEST(MoeSchedule, ParmByHand) {
  const MoeCosts costs{{0, 0}, {1, 1}, {0, 0}, {0, 0}};
  MoeLayer layer{.tokens = 2, .hidden = 1, .ffn = 1, .top_k = 2, .capacity = 1, .bytes = 1, .mp = 2, .ep = 2, .esp = 1};
  const ParmTimes times = PredictParm(layer, costs);
  EXPECT_THAT(times.baseline, DoubleNear(2 * 5, 1e-12));
  EXPECT_THAT(times.s1, DoubleNear(2 * 3, 1e-12));
  EXPECT_THAT(times.s2, DoubleNear(3 + 2 * 1.5, 1e-12));
}

TEST(MoeSchedule, ASlowGatherMakesS1TheBetter) {
  MoeLayer layer{.tokens = 1024, .hidden = 512, .ffn = 2048, .top_k = 2, .capacity = 2.4, .mp = 2, .ep = 4, .esp = 2};
  EXPECT_LT(PredictParm(layer, kFsmoeTestbedB).s2, PredictParm(layer, kFsmoeTestbedB).s1);
  MoeCosts slow = kFsmoeTestbedB;
  slow.all_gather.beta *= 20;
  EXPECT_LT(PredictParm(layer, slow).s1, PredictParm(layer, slow).s2);
}

// Nothing to overlap with: one chunk, for each costs its latency. Much to overlap: several.
TEST(MoeSchedule, ChunksWhereThereIsSomethingToHide) {
  MoeLayer small{.tokens = 16, .hidden = 64, .ffn = 64, .mp = 4, .esp = 4};
  EXPECT_EQ(PlanFsmoe(small, kFsmoeTestbedB, MoePass::kForward).chunks, 1);
  MoeLayer large{.tokens = 1 << 16, .hidden = 4096, .ffn = 16'384, .top_k = 2, .mp = 4, .esp = 4};
  EXPECT_GT(PlanFsmoe(large, kFsmoeTestbedB, MoePass::kForward).chunks, 1);
  EXPECT_GT(PlanFsmoe(large, kFsmoeTestbedB, MoePass::kBackward).ms,
            PlanFsmoe(large, kFsmoeTestbedB, MoePass::kForward).ms);
}

TEST(MoeSchedule, EveryRowOfTheGrids) {
  for (const char* name : {"parm_grid.csv", "fsmoe_grid.csv"}) {
    const std::string path = std::string(LOCKSTEP_DATA "/moe/") + name;
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
    const auto report = CompareMoe(path);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_GT(report->at("rows"), 600);
    EXPECT_TRUE(report->at("skipped").empty());
    EXPECT_EQ(report->at("wrong_choices"), 0) << name;
    EXPECT_LE(report->at("max_rel_ms").get<double>(), 1e-6) << name;
  }
}

TEST(MoeSchedule, SaysWhichRowIsNone) {
  const TestFolder folder;
  EXPECT_THAT(Message(CompareMoe(folder.Write("none.csv", "N_MP\n")).status()), HasSubstr("no row to compute"));
  const std::string path = folder.Write(
      "grid.csv", "t_S1_ms,B,L,M,H,k,f,N_MP,N_EP,N_ESP,t_base_ms,t_S2_ms,choice\n1,0,2,2,2,2,1,1,1,1,1,1,S1\n");
  const auto report = CompareMoe(path);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->at("skipped")[0]["why"].get<std::string>(), HasSubstr("column B is \"0\""));
  const auto why = [&](const char* ranks) {
    folder.Write("grid.csv", fmt::format("t_S1_ms,B,L,M,H,k,f,t_base_ms,t_S2_ms,choice,N_MP,N_EP,N_ESP,P\n"
                                         "1,2,2,2,2,2,1,1,1,S1,{}\n",
                                         ranks));
    const auto compared = CompareMoe(path);
    return compared->at("skipped").empty() ? "" : compared->at("skipped")[0]["why"].get<std::string>();
  };
  EXPECT_EQ(why("2,4,2,8"), "");
  EXPECT_THAT(why("2.5,4,2,8"), HasSubstr("column N_MP is 2.5; expected a whole number"));
  EXPECT_THAT(why("2,1e9,2,8"), HasSubstr("column N_EP is 1e+09; expected a whole number, at most 1e+06"));
  EXPECT_THAT(why("2,4,2,16"), HasSubstr("column P is 16, not N_EP 4 x N_ESP 2"));
  for (const char* column : {"B", "L", "M", "H", "k"}) {
    std::string values = "2,2,2,2,1,1,2,2,2";
    const std::string columns = "B,L,M,H,k,f,N_MP,N_EP,N_ESP";
    values.replace(columns.find(column), 1, "1.5");
    folder.Write("grid.csv", columns + "\n" + values + "\n");
    EXPECT_THAT(CompareMoe(path)->at("skipped")[0]["why"].get<std::string>(),
                HasSubstr(fmt::format("column {} is 1.5; expected a whole number", column)));
  }
  folder.Write("grid.csv", "a,b\n");
  EXPECT_THAT(Message(CompareMoe(path).status()), HasSubstr("neither the columns of Parm's grid"));
}

// What is chosen is told where it is asked for, or where the grid says nothing; else which row is furthest from it.
TEST(MoeSchedule, ChoosesForAGridWithoutAnswers) {
  const TestFolder folder;
  const std::string layers = "B,L,M,H,k,f,N_MP,N_EP,N_ESP", first = "2,512,512,2048,2,2.4,2,4,2",
                    second = "2,512,1024,4096,1,1.2,2,4,2";
  const auto of = [&](const std::string& text, bool with_choices = false) {
    const auto report = CompareMoe(folder.Write("grid.csv", text), with_choices);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : Json();
  };
  const Json chosen = of(layers + "\n" + first + "\n");
  EXPECT_EQ(chosen["choices"][0]["row"], 2);
  EXPECT_EQ(chosen["choices"][0]["choice"], "S2");
  EXPECT_THAT(chosen["choices"][0]["t_S1_ms"].get<double>(), DoubleNear(7.535325, 1e-6));
  EXPECT_EQ(chosen["rows"], 1);
  EXPECT_EQ(chosen["wrong_choices"], Json());
  EXPECT_EQ(chosen["max_rel_ms"], Json());

  const std::string wrong = layers + ",choice,t_S2_ms\n" + first + ",S2,7.3\n" + second + ",S1,4.208403\n";
  const Json compared = of(wrong);
  EXPECT_FALSE(compared.contains("choices"));
  EXPECT_EQ(compared["wrong_choices"], 1);
  EXPECT_EQ(compared["worst"]["row"], 3) << "a wrong choice before a wrong time";
  EXPECT_EQ(compared["worst"]["choice"], Json({"S2", "S1"}));
  EXPECT_THAT(compared["max_rel_ms"].get<double>(), DoubleNear(.0129, 1e-3));
  EXPECT_EQ(of(wrong, true)["choices"].size(), 2u);

  const Json alone = of(layers + ",choice\n" + first + ",S2\n");
  EXPECT_EQ(alone["wrong_choices"], 0);
  EXPECT_EQ(alone["max_rel_ms"], Json()) << "no time was compared";
  const Json timed = of(layers + ",t_S2_ms\n" + first + ",7.3\n");
  EXPECT_EQ(timed["wrong_choices"], Json()) << "no choice was";
  EXPECT_THAT(timed["max_rel_ms"].get<double>(), DoubleNear(.0129, 1e-3));

  const Json chunks = of("testbed,B,L,M,hscale,f,ffn,phase\nA,1,512,1024,2,2.4,simple,fwd\n");
  EXPECT_EQ(chunks["choices"][0]["best_r"], 1);
  EXPECT_THAT(chunks["choices"][0]["t_ms"].get<double>(), DoubleNear(6.697287, 1e-6));
}

// What a row leaves empty it does not say; a choice of another name is an error all the same.
TEST(MoeSchedule, ARowWithoutAnswersIsComputed) {
  const TestFolder folder;
  const std::string layers = "B,L,M,H,k,f,N_MP,N_EP,N_ESP,P,choice,t_S2_ms\n", sizes = "2,512,512,2048,2,2.4,2,4,2,";
  const auto of = [&](const std::string& rows) { return CompareMoe(folder.Write("grid.csv", layers + rows)).value(); };
  const Json report = of(sizes + "8,S2,7.3\n" + sizes + ",,\n" + sizes + "unknown,-, \n" + sizes + "8,S3,\n");
  EXPECT_EQ(report["rows"], 3);
  EXPECT_EQ(report["wrong_choices"], 0);
  ASSERT_EQ(report["skipped"].size(), 1);
  EXPECT_EQ(report["skipped"][0]["why"], "column choice is \"S3\"; expected one of S1, S2");
  const Json blank = of(sizes + "8,,\n");
  EXPECT_EQ(blank["rows"], 1);
  EXPECT_EQ(blank["choices"][0]["choice"], "S2");
  EXPECT_EQ(blank["max_rel_ms"], Json());
}

TEST(MoeSchedule, ContextsMayBeOfMillionsOfTokens) {
  const TestFolder folder;
  const std::string path = folder.Write("grid.csv",
                                        "B,L,M,H,k,f,N_MP,N_EP,N_ESP\n1,1048576,512,2048,2,2.4,2,4,2\n"
                                        "2097152,2097152,2097152,4194304,8,2.4,2,4,2\n");
  const auto report = CompareMoe(path);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->at("skipped"), Json::array());
  const double shorter = report->at("choices")[0]["t_S1_ms"].get<double>();
  EXPECT_GT(report->at("choices")[1]["t_S1_ms"].get<double>(), shorter);
}

}  // namespace
}  // namespace lockstep::plan
