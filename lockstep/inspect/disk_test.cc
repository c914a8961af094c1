#include "lockstep/inspect/disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Disk : public testing::Test {
 protected:
  std::vector<std::string> Judge(const DiskState& disk) {
    Reading reading;
    judge_.Judge({disk}, At(at_ += 10), reading);
    std::vector<std::string> seen;
    for (const Condition& condition : reading.conditions)
      seen.push_back(condition.item + " " + condition.subject + ": " + condition.text);
    return seen;
  }
  double at_ = 0;
  DiskJudge judge_{Settings()};
};

TEST_F(Disk, ErrorsWithinTheWindow) {
  EXPECT_THAT(Judge({.name = "sda", .errors = 500}), IsEmpty()) << "before our time";
  EXPECT_THAT(Judge({.name = "sda", .errors = 509}), IsEmpty()) << "commands that a disk does not know";
  EXPECT_THAT(Judge({.name = "sda", .errors = 510}), ElementsAre("disk_errors sda: 10 errors in 60 s"));
  for (int i = 0; i < 4; ++i) Judge({.name = "sda", .errors = 510});
  EXPECT_THAT(Judge({.name = "sda", .errors = 510}), IsEmpty());
}

TEST_F(Disk, OneErrorOfAFileSystemIsEnough) {
  EXPECT_THAT(Judge({.name = "sda1 (ext4)", .errors = 2, .of_filesystem = true}), IsEmpty());
  EXPECT_THAT(Judge({.name = "sda1 (ext4)", .errors = 3, .of_filesystem = true}),
              ElementsAre("disk_errors sda1 (ext4): 1 errors in 60 s"));
}

TEST_F(Disk, OfflineCountsAtOnce) {
  EXPECT_THAT(Judge({.name = "sda", .state = "running"}), IsEmpty());
  EXPECT_THAT(Judge({.name = "sda", .state = "offline"}), ElementsAre("disk_errors sda: its state is \"offline\""));
}

TEST_F(Disk, StuckIsBusyWithoutEndingAnything) {
  EXPECT_THAT(Judge({.name = "sda", .in_flight = 3, .done = 100}), IsEmpty());
  EXPECT_THAT(Judge({.name = "sda", .in_flight = 3, .done = 101}), IsEmpty()) << "slow";
  EXPECT_THAT(Judge({.name = "sda", .in_flight = 4, .done = 101}),
              ElementsAre("disk_stuck sda: 4 requests are under way and none ends"));
  EXPECT_THAT(Judge({.name = "sda", .in_flight = 0, .done = 101}), IsEmpty()) << "idle";
  EXPECT_THAT(Judge({.name = "sda", .in_flight = 1, .done = 101}), IsEmpty()) << "just begun";
}

TEST(DiskReader, ReadsSysfs) {
  const TestTree fake;
  fake.Write("/sys/block/sda/stat", "10 0 80 5 20 0 160 9 2 12 14 3 0 24 1 4 5");
  fake.Write("/sys/block/sda/device/ioerr_cnt", "0x1f");
  fake.Write("/sys/block/sda/device/state", "running");
  fake.Write("/sys/block/loop0/stat", "1 0 1 0 1 0 1 0 1 0 0");
  fake.Write("/sys/fs/ext4/sda1/errors_count", "2");
  fake.Write("/sys/fs/ext4/features/x", "supported");
  const std::vector<DiskState> disks = ReadDisks(fake.tree());
  ASSERT_EQ(disks.size(), 2U);
  EXPECT_EQ(disks[0].errors, 31U);
  EXPECT_EQ(disks[0].in_flight, 2U);
  EXPECT_EQ(disks[0].done, 37U);  // 10 reads + 20 writes + 3 discards + 4 flushes
  EXPECT_EQ(disks[1].name, "sda1 (ext4)");
  EXPECT_EQ(disks[1].errors, 2U);
}

}  // namespace
}  // namespace lockstep::inspect
