#include "lockstep/control/alerts.h"

#include <gtest/gtest.h>

#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

constexpr Seconds kWindow{300};

Alerted Link(int node, double since, bool cleared = false) {
  return {node, "link", AlertClass::kNetwork, "eth0", "is down", At(since), cleared};
}
Alerted Gpu(int node, double since, bool cleared = false) {
  return {node, "gpu_xid", AlertClass::kMachine, "gpu3", "Xid 79", At(since), cleared};
}

class AlertsTest : public testing::Test {
 protected:
  bool Take(const Alerted& alert, double now) { return alerts_.Take(alert, At(now), kWindow); }
  size_t Unsteady(double now) const { return alerts_.Unsteady(Policy{}, At(now)).size(); }
  Alerts alerts_;
};

TEST_F(AlertsTest, WhatIsSaidAgainIsKnown) {
  EXPECT_TRUE(Take(Gpu(1, 10), 10));
  EXPECT_FALSE(Take(Gpu(1, 10), 12)) << "its agent is back";
  EXPECT_TRUE(Take(Gpu(1, 15), 15)) << "the next inspection found it again";
  EXPECT_TRUE(Take(Gpu(2, 15), 15));
  ASSERT_EQ(alerts_.Broken().size(), 2u);
  EXPECT_EQ(alerts_.Broken()[0].count, 2);
  EXPECT_EQ(alerts_.Broken()[0].newest.since, At(15));
  EXPECT_TRUE(Take(Gpu(1, 15, true), 20));
  EXPECT_FALSE(Take(Gpu(1, 15, true), 21));
  ASSERT_EQ(alerts_.Broken().size(), 1u);
  alerts_.Forget(2);
  EXPECT_TRUE(alerts_.Broken().empty());
}

TEST_F(AlertsTest, OneThatStandsIsKeptHoweverOld) {
  Take(Gpu(1, 10), 10);
  Take(Link(1, 9000), 9000);
  EXPECT_EQ(alerts_.Broken().size(), 1u);
}

TEST_F(AlertsTest, OfTheNetworkClearedOnesCountForAWhile) {
  Take(Link(1, 10), 10);
  Take(Link(1, 10, true), 13);
  EXPECT_EQ(Unsteady(13), 0u);
  Take(Link(1, 200), 200);
  EXPECT_EQ(Unsteady(200), 1u);
  EXPECT_TRUE(alerts_.Unsteady(Policy{}, At(200))[0].stands);
  Take(Link(1, 200, true), 203);
  EXPECT_FALSE(alerts_.Unsteady(Policy{}, At(203))[0].stands);
  EXPECT_EQ(Unsteady(311), 0u) << "the first was more than five minutes ago";
  EXPECT_FALSE(alerts_.IsWidespread(Policy{}, At(203)));
  Take(Link(2, 204), 204);
  EXPECT_TRUE(alerts_.IsWidespread(Policy{}, At(204)));
}

}  // namespace
}  // namespace lockstep::control
