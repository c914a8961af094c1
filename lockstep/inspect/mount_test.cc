#include "lockstep/inspect/mount.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <latch>

#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kTable[] =
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
    "28 27 0:21 / /proc rw - proc proc rw\n"
    "29 27 0:52 / /data rw,relatime shared:3 - nfs4 server:/export rw,vers=4.2\n"
    "30 27 254:0 /srv /home/with\\040space rw - ext4 /dev/vda rw\n"
    "31 27 7:1 / /snap/core ro - squashfs /dev/loop1 ro\n";

const Space kRoom{0, 100e9, 50e9, 1000, 500};

TEST(ParseMounts, PointsTypesAndWhatIsReadOnly) {
  const std::vector<Mount> mounts = ParseMounts(std::string(kTable) + "bad line\n36 35 98:0 / /x rw - xfs /dev/b ro\n");
  ASSERT_EQ(mounts.size(), 6U);
  EXPECT_EQ(mounts[2].source, "server:/export");
  EXPECT_EQ(mounts[3].point, "/home/with space");
  EXPECT_TRUE(mounts[4].read_only);
  EXPECT_TRUE(mounts[5].read_only) << "the file system is, though the mount is not";
  EXPECT_EQ(MountOf(mounts, "/data/run")->point, "/data");
  EXPECT_EQ(MountOf(mounts, "/database")->point, "/");
  EXPECT_EQ(MountOf(mounts, "/home/with space/x")->device, "254:0");
}

class Mounts : public testing::Test {
 protected:
  std::vector<std::string> Judge(const std::string& table, const std::map<std::string, Answer>& answers = {}) {
    Reading reading;
    judge_.Judge(ParseMounts(table), answers, At(at_ += 5), reading);
    faults_.clear();
    std::vector<std::string> seen;
    for (const Condition& condition : reading.conditions) {
      seen.push_back(condition.item + " " + condition.subject + ": " + condition.text);
      faults_.push_back(condition.fault.value_or(settings_[condition.item].fault));
    }
    return seen;
  }
  double at_ = 0;
  Settings settings_;
  std::vector<FaultClass> faults_;
  MountJudge judge_{settings_, {"/data/checkpoints", "/home"}};
};

std::string Without(std::string table, const std::string& line) {
  const size_t at = table.find(line);
  return table.erase(at, table.find('\n', at) + 1 - at);
}

TEST_F(Mounts, LostAndBackAgain) {
  EXPECT_THAT(Judge(kTable), IsEmpty());
  EXPECT_THAT(Judge(Without(kTable, "29 ")),
              ElementsAre("mount_lost /data: server:/export (nfs4) is not mounted any more"));
  EXPECT_THAT(Judge(kTable), IsEmpty());
  EXPECT_THAT(Judge(std::string(kTable) + "40 29 0:60 / /data rw - tmpfs none rw\n"),
              ElementsAre("mount_lost /data: none (tmpfs) is mounted in the place of server:/export (nfs4)"));
}

TEST_F(Mounts, WhatTheJobDoesNotUseIsNotMissed) {
  EXPECT_THAT(Judge(kTable), IsEmpty());
  EXPECT_THAT(Judge(Without(kTable, "31 ")), IsEmpty());
}

TEST_F(Mounts, ReadOnlyIsWhoCouldBeWrittenTo) {
  EXPECT_THAT(Judge(kTable), IsEmpty());
  std::string table = kTable;
  table.replace(table.find("rw,discard"), 2, "ro");
  EXPECT_THAT(Judge(table), ElementsAre("disk_read_only /: /dev/vda (ext4) can only be read now"));
}

TEST_F(Mounts, SilenceIsSeenWhenItLasts) {
  EXPECT_THAT(Judge(kTable, {{"/data", {std::nullopt, {9.9}}}, {"/", {kRoom, {}}}}), IsEmpty());
  EXPECT_THAT(Judge(kTable, {{"/data", {std::nullopt, {12}}}}),
              ElementsAre("mount_silent /data: server:/export (nfs4) does not answer for 12 s"));
  EXPECT_THAT(faults_, ElementsAre(FaultClass::kNetwork));
  Judge(kTable, {{"/", {std::nullopt, {12}}}});
  EXPECT_THAT(faults_, ElementsAre(FaultClass::kMachine)) << "a disk of its own";
}

TEST_F(Mounts, FullInSpaceOrInodes) {
  const Space full{0, 100e9, 0.5e9, 1000, 500};
  EXPECT_THAT(Judge(kTable, {{"/", {full, {}}}}), ElementsAre("disk_full /: 0.50 % of 93.13 GiB (ext4) is free"));
  EXPECT_THAT(faults_, ElementsAre(FaultClass::kMachine));
  const Space few{0, 100e9, 50e9, 1000, 10};
  EXPECT_THAT(Judge(kTable, {{"/data", {few, {}}}}), ElementsAre("disk_full /data: 10 of 1000 inodes are free"));
  EXPECT_THAT(faults_, ElementsAre(FaultClass::kSoftware)) << "all machines see it";
  EXPECT_THAT(Judge(kTable, {{"/", {Space{}, {}}}, {"/data", {kRoom, {}}}}), IsEmpty());
}

TEST_F(Mounts, StaleHandlesAreLossAndNoRightToLookIsNone) {
  EXPECT_THAT(Judge(kTable, {{"/data", {Space{.error = ESTALE}, {}}}}),
              ElementsAre("mount_lost /data: server:/export (nfs4): Stale file handle"));
  EXPECT_THAT(Judge(kTable, {{"/data", {Space{.error = EACCES}, {}}}}), IsEmpty());
}

TEST(MountJudge, WithoutPathsAllThatHoldDataEachDeviceOnce) {
  MountJudge judge(Settings(), {});
  std::vector<std::string> points;
  for (const Mount& mount : judge.Watch(ParseMounts(kTable))) points.push_back(mount.point);
  EXPECT_THAT(points, ElementsAre("/", "/data"));
}

// A server that does not answer holds up neither the reading nor the other file systems.
TEST(MountReader, GoesOnWhenOneDoesNotAnswer) {
  const TestTree fake;
  fake.Write("/proc/1/mountinfo", kTable);
  auto answers = std::make_shared<std::latch>(1);
  const auto ask = [answers, data = fake.tree().Path("/data")](const std::string& path) {
    if (path == data) answers->wait();
    return kRoom;
  };
  const auto reader = MountReader(Settings(), {fake.tree(), {}}, ask);
  EXPECT_THAT(reader->Read(At(0)).conditions, IsEmpty());
  Reading reading = reader->Read(At(12));
  ASSERT_EQ(reading.conditions.size(), 1U);
  EXPECT_EQ(reading.conditions[0].text, "server:/export (nfs4) does not answer for 12 s");
  EXPECT_EQ(reading.figures.size(), 2U);
  answers->count_down();
  for (double at = 13; !reading.conditions.empty(); ++at) reading = reader->Read(At(at));
}

}  // namespace
}  // namespace lockstep::inspect
