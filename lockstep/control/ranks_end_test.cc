#include "lockstep/control/ranks_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }

TEST(RanksEnd, WithTheAgentOrByTheStarterWhicheverIsNearer) {
  const Unheard closed{At(100)}, silent{At(100), true};
  for (const double when : {97, 104}) EXPECT_EQ(RanksEnd(closed, At(when)), At(100));
  EXPECT_EQ(RanksEnd(closed, At(149)), At(100)) << "they train on";
  for (const double when : {152, 160, 168}) EXPECT_EQ(RanksEnd(closed, At(when)), At(160));
  EXPECT_EQ(RanksEnd(closed, At(171)), At(100)) << "they trained on: the agent lives";
  EXPECT_EQ(RanksEnd(silent, At(160)), At(100)) << "its starter has it still, or is gone too";
  EXPECT_TRUE(EndNear(closed, At(160)));
  EXPECT_FALSE(EndNear(silent, At(160)));
  EXPECT_FALSE(WentOn(closed, At(160)));
  EXPECT_TRUE(WentOn(silent, At(160)));
}

TEST(RanksEnd, IsToldWhereThereAreSeveral) {
  EXPECT_EQ(WhyChosen({"b"}, {At(1)}, At(1), "that happened"), "");
  EXPECT_EQ(WhyChosen({"b", "c"}, {At(1)}, At(3), "that happened"),
            "; of the nodes whose agents are out of reach (b, c) it was lost nearest to when that happened");
  EXPECT_THAT(WhyChosen({"b", "c"}, {At(1)}, At(62), "the job stood"),
              testing::EndsWith("(b, c) its ranks were to be ended nearest to when the job stood: a starter does so "
                                "60 s after it has lost its agent"));
}

}  // namespace
}  // namespace lockstep::control
