#include "lockstep/control/plan_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

PlannedStep Plan() {
  return {.path = "plan.json",
          .layout = "tp 8",
          .accelerators = 8,
          .step_time = {1.2},
          .low = {1.1},
          .high = {1.31},
          .communication = {.2}};
}

std::optional<double> Untold() { return std::nullopt; }
Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }

TEST(PlanWatch, TellsOnceThatStepsTakeLongerUntilTheyAreBack) {
  PlanWatch watch(Plan());
  EXPECT_FALSE(watch.At({}, 8, At(1), Untold)) << "not known yet";
  EXPECT_FALSE(watch.At({1.3}, 8, At(2), Untold));
  EXPECT_FALSE(watch.At({1.4}, 8, At(3), Untold)) << "not for long yet";
  EXPECT_FALSE(watch.At({1.3}, 8, At(12), Untold));
  EXPECT_FALSE(watch.At({1.4}, 8, At(14), Untold)) << "it was back";
  const auto finding = watch.At({1.43}, 8, At(24), Untold);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->since, At(14));
  EXPECT_EQ(finding->evidence.front(), "steps take 1.43 s; the plan said 1.2 (1.1 to 1.31)");
  EXPECT_EQ(incident::Headline(*finding),
            "the job does not keep to its plan: steps take 1.43 s; the plan said 1.2 (1.1 to 1.31)");
  EXPECT_TRUE(finding->certain);
  EXPECT_TRUE(incident::IsSlowness(finding->syndrome)) << "never a reason to act";
  EXPECT_FALSE(watch.At({1.5}, 8, At(40), Untold)) << "once";
  EXPECT_FALSE(watch.At({1.0}, 8, At(41), Untold));
  EXPECT_FALSE(watch.At({1.5}, 8, At(42), Untold));
  EXPECT_TRUE(watch.At({1.5}, 8, At(52), Untold)) << "anew";
}

// Of the plan's 1.2 s, 1.0 are no communication.
TEST(PlanWatch, TellsWhereTheTimeGoesAsFarAsRecordsDo) {
  PlanWatch outside(Plan()), within(Plan());
  for (PlanWatch* watch : {&outside, &within}) EXPECT_FALSE(watch->At({1.6}, 8, At(1), Untold));
  const auto computes = outside.At({1.6}, 8, At(11), [] { return std::optional(.1 / 1.6); });
  ASSERT_TRUE(computes);
  ASSERT_EQ(computes->evidence.size(), 2U);
  EXPECT_THAT(computes->evidence[1], HasSubstr("0.1 s of it in collectives, 1.5 s outside"));
  EXPECT_THAT(computes->evidence[1], HasSubstr("computing, or the host, takes longer"));
  const auto talks = within.At({1.6}, 8, At(11), [] { return std::optional(.6 / 1.6); });
  ASSERT_TRUE(talks);
  EXPECT_THAT(talks->evidence[1], HasSubstr("most of the difference is within collectives"));
}

TEST(PlanWatch, AnotherWorldIsNotCompared) {
  PlanWatch watch(Plan());
  for (const double at : {1, 12}) EXPECT_FALSE(watch.At({9}, 7, At(at), Untold));
  EXPECT_EQ(watch.Report({9}, 7)["verdict"], "of 8 accelerators; 7 ranks run");
  EXPECT_TRUE(watch.Report({9}, 7)["drift"].is_null());
}

TEST(PlanWatch, Reports) {
  const PlanWatch watch(Plan());
  EXPECT_EQ(watch.Report({}, 8)["verdict"], "not known yet");
  EXPECT_EQ(watch.Report({1.2}, 8)["verdict"], "within");
  EXPECT_EQ(watch.Report({1.0}, 8)["verdict"], "faster");
  const Json slower = watch.Report({1.5}, 8);
  EXPECT_EQ(slower["verdict"], "slower");
  EXPECT_NEAR(slower["drift"].get<double>(), .25, 1e-12);
}

TEST(PlannedStep, IsReadAndRefused) {
  const TestFolder folder;
  const auto read = [&](const std::string& text) { return ReadPlannedStep(folder.Write("planned.json", text)); };
  const auto plan = read(
      R"({"accelerators": 8, "layout": "tp 8", "step_time_s": 1.2, "lo80": 1.1, "hi80": 1.3, "exposed_communication_s": 0})");
  ASSERT_TRUE(plan.ok()) << Message(plan.status());
  EXPECT_EQ(plan->accelerators, 8);
  EXPECT_EQ(plan->high.value, 1.3);
  const auto why = [&](const std::string& text) { return Message(read(text).status()); };
  EXPECT_THAT(why("not JSON"), HasSubstr("no JSON object; expected what `lockstep plan"));
  EXPECT_THAT(why(R"({"best": [], "candidates": 3})"), HasSubstr("the best of many layouts"));
  EXPECT_THAT(why(R"({"step_time_s": "fast"})"), HasSubstr("step_time_s is \"fast\", expected a number"));
  EXPECT_THAT(why(R"({"accelerators": 8, "step_time_s": 2, "lo80": 1.1, "hi80": 1.3, "exposed_communication_s": 0})"),
              HasSubstr("not between lo80 and hi80"));
}

}  // namespace
}  // namespace lockstep::control
