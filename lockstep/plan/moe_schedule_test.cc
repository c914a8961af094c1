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
  EXPECT_THAT(Message(CompareMoe(folder.Write("none.csv", "t_S1_ms\n")).status()), HasSubstr("no row to compare with"));
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
  folder.Write("grid.csv", "a,b\n");
  EXPECT_THAT(Message(CompareMoe(path).status()), HasSubstr("neither the columns of Parm's grid"));
}

}  // namespace
}  // namespace lockstep::plan
