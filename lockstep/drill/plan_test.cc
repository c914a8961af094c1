#include "lockstep/drill/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::drill {
namespace {

constexpr Ranks kFour{.first = 0, .count = 4};

constexpr char kSchedule[] = R"(seed = 7
[[fault]]
after_s = 1.5
fault = "kill"
rank = "random"

[[fault]]
at_step = 200
fault = "slow"
rank = 1
share = 30
for_s = 4

[[fault]]
after_s = 9
fault = "kill-coordinator"
)";

std::string ErrorOf(const std::string& text) { return Message(ParsePlan(text, "d.toml", kFour).status()); }
std::string ErrorOfFault(const std::string& lines) { return ErrorOf("[[fault]]\n" + lines); }

std::vector<int> Drawn(uint64_t seed, const Ranks& ranks) {
  Plan plan;
  plan.seed = seed;
  plan.faults.resize(100);
  DrawRanks(plan, ranks);
  std::vector<int> drawn;
  drawn.reserve(plan.faults.size());
  for (const Planned& planned : plan.faults) drawn.push_back(planned.fault.rank.value());
  return drawn;
}

TEST(Plan, ReadsASchedule) {
  const auto plan = ParsePlan(kSchedule, "d.toml", kFour);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(OneLine(ToJson(*plan)), R"({"seed":7,"faults":[{"after_s":1.5,"fault":"kill","rank":null},)"
                                    R"({"at_step":200,"fault":"slow","rank":1,"for_s":4.0,"share":30},)"
                                    R"({"after_s":9.0,"fault":"kill-coordinator","rank":null}]})");
}

TEST(Plan, SameSeedSameRanks) {
  EXPECT_EQ(Drawn(7, kFour), Drawn(7, kFour));
  EXPECT_NE(Drawn(7, kFour), Drawn(8, kFour));
}

TEST(Plan, DrawsEveryRankAndNoOther) {
  const std::vector<int> drawn = Drawn(1, kFour);
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(std::find(drawn.begin(), drawn.end(), rank), drawn.end());
  for (const int rank : drawn) EXPECT_LT(rank, 4);
}

TEST(Plan, OfANodeHasItsRanksOnly) {
  const Ranks second{.first = 4, .count = 4};
  for (const int rank : Drawn(1, second)) EXPECT_TRUE(second.Has(rank)) << rank;
  EXPECT_TRUE(ParsePlan("[[fault]]\nfault = \"kill\"\nrank = 7\n", "d.toml", second).ok());
  EXPECT_FALSE(ParsePlan("[[fault]]\nfault = \"kill\"\nrank = 3\n", "d.toml", second).ok());
}

TEST(Plan, DrawsNothingForAFaultThatStrikesNoRank) {
  auto plan = *ParsePlan(kSchedule, "d.toml", kFour);
  DrawRanks(plan, kFour);
  EXPECT_TRUE(plan.faults[0].fault.rank.has_value());
  EXPECT_EQ(plan.faults[1].fault.rank, 1);
  EXPECT_FALSE(plan.faults[2].fault.rank.has_value());
}

TEST(Plan, EveryErrorNamesItsLine) {
  EXPECT_EQ(ErrorOf("seed = 1\n").substr(0, 9), "d.toml:1:");
  EXPECT_EQ(ErrorOfFault("rank = 1\n").substr(0, 9), "d.toml:1:");
  EXPECT_EQ(ErrorOfFault("fault = \"kil\"\nrank = 1\n").substr(0, 37), "d.toml:2:9: fault.fault: no fault \"ki");
  EXPECT_EQ(ErrorOfFault("fault = \"kill\"\nrank = 4\n").substr(0, 12), "d.toml:3:8: ");
  EXPECT_EQ(ErrorOfFault("fault = \"kill\"\nrank = \"any\"\n").substr(0, 12), "d.toml:3:8: ");
  EXPECT_NE(ErrorOfFault("fault = \"kill\"\n").find("rank"), std::string::npos);
  EXPECT_NE(ErrorOfFault("fault = \"kill\"\nrank = 1\nat_step = 1\nafter_s = 1\n").find("exclude each other"),
            std::string::npos);
  EXPECT_NE(ErrorOfFault("fault = \"kill\"\nrank = 1\nshares = 1\n").find("share"), std::string::npos);
  EXPECT_EQ(ErrorOfFault("fault = \"fill-disk\"\n"),
            "d.toml:2:9: fault.fault: fill-disk needs a directory: --dir, or dir in the schedule");
  EXPECT_EQ(
      Message(ParsePlan("[[fault]]\nfault = \"kill\"\n", "d.toml", {.first = 0, .count = 0}).status()).substr(0, 59),
      "d.toml:2:9: fault.fault: this is the run of a coordinator w");
  EXPECT_EQ(ErrorOfFault("fault = \"stop\"\nrank = 1\nfor_s = 1e300\n"),
            "d.toml:4:9: fault.for_s must be 0.001 to 1000000000, found 1e+300");
  EXPECT_EQ(ErrorOfFault("fault = \"stop\"\nrank = 1\nfor_s = 1e9\n"), "");
  EXPECT_EQ(ErrorOfFault("fault = \"kill\"\nrank = 1\nshare = 30\n"), "d.toml:4:9: fault.share has no effect on kill");
  EXPECT_EQ(ErrorOfFault("fault = \"kill-starter\"\nrank = \"random\"\n"),
            "d.toml:3:8: fault.rank has no effect on kill-starter");
}

}  // namespace
}  // namespace lockstep::drill
