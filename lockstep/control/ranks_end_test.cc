#include "lockstep/control/ranks_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }

TEST(RanksEnd, WithTheAgentOrByTheStarterWhicheverIsNearer) {
  EXPECT_EQ(RanksEnd(At(100), At(97)), At(100)) << "a machine that is silent is lost 4 s later";
  EXPECT_EQ(RanksEnd(At(100), At(104)), At(100));
  EXPECT_EQ(RanksEnd(At(100), At(149)), At(100)) << "they train on";
  for (const double when : {152, 160, 168}) EXPECT_EQ(RanksEnd(At(100), At(when)), At(160));
  EXPECT_EQ(RanksEnd(At(100), At(171)), At(100)) << "they trained on: the agent lives";
}

TEST(RanksEnd, IsToldWhereThereAreSeveral) {
  EXPECT_EQ(WhyChosen({"b"}, At(1), At(1), "that happened"), "");
  EXPECT_EQ(WhyChosen({"b", "c"}, At(1), At(3), "that happened"),
            "; of the nodes whose agents are out of reach (b, c) it was lost nearest to when that happened");
  EXPECT_THAT(WhyChosen({"b", "c"}, At(1), At(62), "the job stood"),
              testing::EndsWith("(b, c) its ranks were to be ended nearest to when the job stood: a starter does so "
                                "60 s after it has lost its agent"));
}

}  // namespace
}  // namespace lockstep::control
