#include "lockstep/inspect/inspector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/inspect/report.h"
#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Seconds kTolerance{30};

Reading NicReading(double at, std::vector<std::string> down) {
  Reading reading{.source = Source::kNic, .at = At(at)};
  for (const std::string& nic : down) reading.conditions.push_back({"nic_down", nic, "no carrier"});
  return reading;
}

std::vector<std::string> Texts(const std::vector<Alert>& alerts) {
  std::vector<std::string> texts;
  for (const Alert& alert : alerts) texts.push_back(AlertText(alert));
  return texts;
}

// Raised at the first reading at which since + tolerance has come: 30 s, in steps of 5.
TEST(Inspector, RaisesOnceWhenTheToleranceIsOverAndClearsOnce) {
  Inspector inspector{Settings()};
  for (int at = 0; at < 30; at += 5) inspector.Take(NicReading(at, {"eth0"}));
  EXPECT_THAT(inspector.Alerts(), IsEmpty());
  EXPECT_THAT(Texts(inspector.Pending()), ElementsAre("nic_down eth0: no carrier (network; for 0 s)"));
  for (int at = 30; at < 60; at += 5) inspector.Take(NicReading(at, {"eth0"}));
  EXPECT_THAT(Texts(inspector.TakeChanges()), ElementsAre("nic_down eth0: no carrier (network; for 30 s)"));
  EXPECT_EQ(inspector.Alerts().size(), 1U);
  inspector.Take(NicReading(60, {}));
  inspector.Take(NicReading(65, {}));
  EXPECT_THAT(Texts(inspector.TakeChanges()), ElementsAre("nic_down eth0: no carrier (network; over after 60 s)"));
  EXPECT_THAT(inspector.Alerts(), IsEmpty());
}

TEST(InspectionReport, WhatHoldsLastsUntilNow) {
  const Alert alert{"nic_down", "eth0", FaultClass::kNetwork, "", At(10), At(40), {}};
  Inspection seen;
  seen.at = At(100);
  seen.alerts = seen.cleared = seen.pending = {alert};
  seen.cleared[0].cleared = At(60);
  seen.pending[0].since = At(90);
  const Json report = InspectionReport(seen);
  EXPECT_EQ(report["alerts"][0]["lasted_s"], 90);
  EXPECT_EQ(report["cleared"][0]["lasted_s"], 50);
  EXPECT_EQ(report["not_yet_alerts"][0]["lasted_s"], 10);
}

TEST(Inspector, WhatHealsItselfIsNoAlert) {
  Inspector inspector{Settings()};
  for (int at = 0; at < 600; at += 5)
    inspector.Take(NicReading(at, at % 30 == 25 ? std::vector<std::string>{} : std::vector<std::string>{"eth0"}));
  EXPECT_THAT(inspector.TakeChanges(), IsEmpty());
  EXPECT_EQ(inspector.healed(), 20);
}

TEST(Inspector, CountsHowOftenItCameBack) {
  Inspector inspector{Settings()};
  for (int round = 0; round < 3; ++round) {
    for (int at = 0; at <= 30; at += 5) inspector.Take(NicReading(100 * round + at, {"eth0"}));
    inspector.Take(NicReading(100 * round + 35, {}));
  }
  EXPECT_EQ(inspector.TakeChanges().back().times, 3);
}

TEST(Inspector, SubjectsAreApart) {
  Inspector inspector{Settings()};
  for (int at = 0; at <= 40; at += 5)
    inspector.Take(
        NicReading(at, at < 20 ? std::vector<std::string>{"eth0"} : std::vector<std::string>{"eth0", "eth1"}));
  ASSERT_EQ(inspector.Alerts().size(), 1U);
  EXPECT_EQ(inspector.Alerts()[0].subject, "eth0");
}

// Two readings an hour apart are not an hour of being down: they count as two intervals.
TEST(Inspector, TimeThatPassedUnseenIsNotTolerance) {
  Inspector inspector{Settings()};
  inspector.Take(NicReading(0, {"eth0"}));
  inspector.Take(NicReading(3600, {"eth0"}));
  EXPECT_THAT(inspector.Alerts(), IsEmpty());
  inspector.Take(NicReading(3605, {"eth0"}));
  inspector.Take(NicReading(3610, {"eth0"}));
  inspector.Take(NicReading(3615, {"eth0"}));
  EXPECT_THAT(inspector.Alerts(), IsEmpty());
  inspector.Take(NicReading(3620, {"eth0"}));  // 10 + 4 * 5 s
  EXPECT_EQ(inspector.Alerts().size(), 1U);
}

TEST(Inspector, AClockThatRunsBackwardsStopsNothing) {
  Inspector inspector{Settings()};
  EXPECT_EQ(inspector.Due(At(1000)).size(), static_cast<size_t>(kSourceCount));
  EXPECT_EQ(inspector.Due(At(10)).size(), static_cast<size_t>(kSourceCount));
  for (int at = 1000; at < 1020; at += 5) inspector.Take(NicReading(at, {"eth0"}));
  for (int at = 0; at < 10; at += 5) inspector.Take(NicReading(at, {"eth0"}));
  EXPECT_THAT(inspector.Alerts(), IsEmpty());
}

TEST(Inspector, AlertsAreValidText) {
  Settings settings;
  settings["nic_down"].tolerance = {0};
  settings["nic_down"].readings = 1;
  Inspector inspector(settings);
  inspector.Take(NicReading(0, {"m\xc3\xbcller", "bad\xff"}));
  ASSERT_EQ(inspector.Alerts().size(), 2U);
  EXPECT_EQ(inspector.Alerts()[0].subject, "bad\xef\xbf\xbd");
  EXPECT_EQ(inspector.Alerts()[1].subject, "m\xc3\xbcller");
}

TEST(Inspector, DueBySource) {
  Inspector inspector{Settings()};
  EXPECT_EQ(inspector.Due(At(0)).size(), static_cast<size_t>(kSourceCount));
  EXPECT_EQ(inspector.UntilDue(At(0)), Seconds{2});
  EXPECT_THAT(inspector.Due(At(2)), ElementsAre(Source::kKernelLog));
  EXPECT_EQ(inspector.UntilDue(At(3)), Seconds{1});
  EXPECT_THAT(inspector.Due(At(5)),
              ElementsAre(Source::kNic, Source::kMount, Source::kMemory, Source::kKernelLog, Source::kGpu));
}

// Whoever sleeps until something is due wakes a little late, each time by another moment, and reads for a while.
TEST(Inspector, EveryReadingThatIsDueCounts) {
  Settings settings;
  settings["nic_down"].tolerance = {0};
  settings["nic_down"].readings = 40;
  Inspector inspector(settings);
  std::mt19937 random(1);
  Nanos now = At(100);
  int readings = 0;
  while (inspector.Alerts().empty() && readings < 1000) {
    inspector.ReadDue(now, [&](Source source, Nanos at) {
      now += At(0.001 * static_cast<double>(random() % 10));  // it takes
      Reading reading{.source = source, .at = at, .conditions = {{"nic_down", "eth0", "no carrier"}}};
      readings += source == Source::kNic ? 1 : 0;
      return source == Source::kNic ? reading : Reading{.source = source, .at = at};
    });
    now += ToNanos(inspector.UntilDue(now)) + At(0.001 * static_cast<double>(random() % 10));
  }
  EXPECT_EQ(readings, 40);
}

// mount_lost is read every 5 s, disk_full of the same source every 10 s.
TEST(Inspector, AnItemCountsItsOwnReadingsOnly) {
  Settings settings;
  settings["disk_full"].tolerance = {0};
  settings["disk_full"].readings = 3;
  Inspector inspector(settings);
  for (int at = 0; at < 20; at += 5)
    inspector.Take({.source = Source::kMount, .at = At(at), .conditions = {{"disk_full", "/data", "full"}}});
  EXPECT_THAT(inspector.Alerts(), IsEmpty());
  inspector.Take({.source = Source::kMount, .at = At(20), .conditions = {{"disk_full", "/data", "full"}}});
  EXPECT_EQ(inspector.Alerts().size(), 1U);
}

TEST(Inspector, WhatCannotBeSeenAnyMoreStands) {
  Settings settings;
  settings["nic_down"].tolerance = {0};
  settings["nic_down"].readings = 1;
  Inspector inspector(settings);
  inspector.Take(NicReading(0, {"eth0"}));
  Reading blind{.source = Source::kNic, .at = At(5)};
  MissAll(settings, "no sysfs", blind);
  inspector.Take(blind);
  EXPECT_EQ(inspector.Alerts().size(), 1U);
  EXPECT_EQ(inspector.missing().at("nic_down"), "no sysfs");
  inspector.Take(NicReading(10, {}));
  EXPECT_THAT(inspector.Alerts(), IsEmpty());
  EXPECT_THAT(inspector.missing(), IsEmpty());
}

// Property: of any history, each subject's changes alternate between raised and cleared, and none is raised before
// its condition was in all readings of the tolerance before.
TEST(Inspector, ChangesAlternateInAnyHistory) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Inspector inspector{Settings()};
    int downs = 0;  // readings in a row
    bool raised = false;
    double at = 0;
    for (int i = 0; i < 200; ++i) {
      at += 5;
      const bool down = random() % 8 != 0;
      downs = down ? downs + 1 : 0;
      inspector.Take(NicReading(at, down ? std::vector<std::string>{"eth0"} : std::vector<std::string>{}));
      for (const Alert& alert : inspector.TakeChanges()) {
        EXPECT_EQ(alert.cleared.value != 0, raised) << seed;
        raised = alert.cleared.value == 0;
      }
      EXPECT_EQ(raised, (downs - 1) * 5 >= kTolerance.value) << seed << " " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::inspect
