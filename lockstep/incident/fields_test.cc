#include "lockstep/incident/fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::incident {
namespace {

TEST(Fields, ReadsWhatIsThereAndIgnoresTheRest) {
  const Json json = {{"step", 17}, {"type", "ValueError"}, {"from_the_future", {1, 2}}};
  Fields fields(json, "exception");
  EXPECT_EQ(fields.Int("step"), 17);
  EXPECT_EQ(fields.Text("type"), "ValueError");
  EXPECT_EQ(fields.Optional("absent"), nullptr);
  EXPECT_TRUE(fields.status().ok());
}

TEST(Fields, TheFirstProblemIsTheOneReported) {
  const Json json = {{"step", "seventeen"}};
  Fields fields(json, "progress");
  EXPECT_EQ(fields.Int("step"), 0);
  EXPECT_EQ(fields.Flag("missing"), false);
  EXPECT_EQ(Message(fields.status()), "progress: field step must be an integer, found string");
}

TEST(Fields, AMissingFieldIsNamed) {
  const Json json = Json::object();
  Fields fields(json, "rank_exited");
  EXPECT_EQ(fields.Texts("evidence").size(), 0u);
  EXPECT_EQ(Message(fields.status()), "rank_exited: field evidence is missing");
}

TEST(Fields, RefusesWhatIsNoObjectAndNumbersThatDoNotFit) {
  const Json array = Json::array();
  EXPECT_EQ(Message(Fields(array, "finding").status()), "finding: expected a JSON object, found array");
  const Json json = {{"rank", 1LL << 40}, {"epoch", -1}};
  Fields rank(json, "e");
  rank.Int32("rank");
  EXPECT_FALSE(rank.status().ok());
  const Json beyond = {{"rank", uint64_t{18446744073709551615U}}};
  for (const bool wide : {false, true}) {
    Fields fields(beyond, "e");
    wide ? static_cast<void>(fields.Int("rank")) : static_cast<void>(fields.Int32("rank"));
    EXPECT_FALSE(fields.status().ok()) << "it would be -1";
  }
  Fields epoch(json, "e");
  epoch.Unsigned("epoch");
  EXPECT_EQ(Message(epoch.status()), "e: field epoch must be a whole number from 0 to 18446744073709551615, found -1");
}

}  // namespace
}  // namespace lockstep::incident
