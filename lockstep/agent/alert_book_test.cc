#include "lockstep/agent/alert_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::agent {
namespace {

using control::AlertClass;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }

inspect::Alert Alert(inspect::FaultClass fault, double raised, double cleared = 0) {
  return {"nic_down", "eth0", fault, "no carrier", At(raised - 30), At(raised), At(cleared)};
}

TEST(AlertBook, SaysWhatAndWhose) {
  AlertBook book;
  const control::Alerted said = book.Take(Alert(inspect::FaultClass::kNetwork, 100), 3);
  EXPECT_EQ(said.node, 3);
  EXPECT_EQ(said.item, "nic_down");
  EXPECT_EQ(said.subject, "eth0");
  EXPECT_EQ(said.kind, AlertClass::kNetwork);
  EXPECT_EQ(said.since, At(100)) << "when it became an alert, not when the condition began";
  EXPECT_FALSE(said.cleared);
  EXPECT_THAT(book.standing(), SizeIs(1));
  EXPECT_TRUE(book.Take(Alert(inspect::FaultClass::kNetwork, 100, 150), 3).cleared);
  EXPECT_THAT(book.standing(), IsEmpty());
}

TEST(AlertBook, WhatLastsIsSaidAgain) {
  AlertBook book;
  book.Take(Alert(inspect::FaultClass::kMachine, 100), 0);
  EXPECT_THAT(book.Repeat(At(219)), IsEmpty());
  ASSERT_THAT(book.Repeat(At(220)), SizeIs(1));
  EXPECT_THAT(book.Repeat(At(221)), IsEmpty());
  EXPECT_EQ(book.Repeat(At(340)).front().since, At(340)) << "another alert, for those who count";
}

TEST(AlertBook, WhatNobodyActsOnIsSaidOnce) {
  AlertBook book;
  book.Take(Alert(inspect::FaultClass::kWarning, 100), 0);
  book.Take(Alert(inspect::FaultClass::kSoftware, 100), 0);
  EXPECT_THAT(book.standing(), SizeIs(1)) << "the same condition, of another class now";
  EXPECT_THAT(book.Repeat(At(1000)), IsEmpty());
}

TEST(AlertBook, AStandbyTakesItsAlertsAlong) {
  AlertBook book;
  book.Take(Alert(inspect::FaultClass::kMachine, 100), 0);
  book.Seat(5);
  EXPECT_EQ(book.standing().front().node, 5);
}

}  // namespace
}  // namespace lockstep::agent
