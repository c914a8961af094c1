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

TEST(AlertBook, TheKernelsLogNamesProcessesOfTheWholeMachine) {
  inspect::Alert alert = Alert(inspect::FaultClass::kSoftware, 100);
  const std::map<int64_t, RankId> ranks = {{16679, RankId(3)}};
  EXPECT_EQ(WhoseText(alert, ranks), "");
  alert.subject = "python3";
  alert.text = "traps: python3[16679] general protection fault ip:7f6ffe4e1ab0";
  EXPECT_EQ(WhoseText(alert, ranks), ": process 16679 was rank 3");
  alert.text = "python3[812]: segfault at 0 ip 00007f";
  EXPECT_EQ(WhoseText(alert, ranks), ": process 812 is not known to be a rank of this job");
  alert.text = "python3[";
  EXPECT_EQ(WhoseText(alert, ranks), "");
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
