// Writing and reading back; and the tests that run in a process of their own.
#include "lockstep/probe/disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_limit.h"
#include "lockstep/probe/apart.h"

namespace lockstep::probe {
namespace {

using testing::HasSubstr;

class Disk : public testing::Test {
 protected:
  ~Disk() override { EXPECT_TRUE(std::filesystem::is_empty(folder_.path())); }
  const SystemClock clock_;
  const Budget budget_{clock_, Seconds{30}, {}};
  const TestFolder folder_;
};

TEST_F(Disk, KeepsWhatIsWritten) {
  const std::vector<Measurement> measured = MeasureDisk(budget_, {.directory = folder_.path(), .bytes{4 << 20}});
  ASSERT_EQ(measured.size(), 3u);
  for (const Measurement& one : measured) EXPECT_TRUE(one.ok) << one.text;
  EXPECT_THAT(measured[0].text, HasSubstr("4 of 4 MiB written, 4 read back, in " + folder_.path()));
  EXPECT_GT(measured[1].value, 0);
  EXPECT_GT(measured[2].value, 0);
}

TEST_F(Disk, AWrongWordIsPlaced) {
  const auto flip = [](uint64_t offset, std::span<uint64_t> block) {
    if (offset == 2 << 20) block[1] ^= 1;
  };
  const Measurement bits = MeasureDisk(budget_, {.directory = folder_.path(), .bytes{4 << 20}, .tamper = flip})[0];
  EXPECT_FALSE(bits.ok);
  EXPECT_EQ(bits.value, 1);
  EXPECT_THAT(bits.text, HasSubstr("1 words came back wrong, first at byte 2097160:"));
}

TEST_F(Disk, NoMoreRoomIsAFinding) {
  const auto limited = [&] {  // in a process of its own, where signals go on being ignored
    const TestLimit limit(RLIMIT_FSIZE, 2 << 20);
    signal(SIGXFSZ, SIG_IGN);
    return MeasureDisk(budget_, {.directory = folder_.path(), .bytes{4 << 20}});
  };
  const std::vector<Measurement> measured = RunApart("disk", budget_, Seconds{5}, limited);
  ASSERT_GE(measured.size(), 1u);
  EXPECT_FALSE(measured[0].ok);
  EXPECT_THAT(measured[0].text, HasSubstr("writing: File too large; 2 of 4 MiB written, 2 read back"));
}

TEST_F(Disk, NoDirectoryIsAFinding) {
  const std::vector<Measurement> measured = MeasureDisk(budget_, {.directory = folder_ / "none"});
  ASSERT_EQ(measured.size(), 1u);
  EXPECT_FALSE(measured[0].ok);
  EXPECT_THAT(measured[0].text, HasSubstr("making a file in " + folder_ / "none: No such file"));
}

TEST_F(Disk, WhatHangsOrCrashesIsSaid) {
  const Budget none(clock_, Seconds{0}, {});
  const auto hang = []() -> std::vector<Measurement> {
    for (;;) pause();
  };
  const std::vector<Measurement> hung = RunApart("disk", none, Seconds{0.05}, hang);
  EXPECT_FALSE(hung[0].ok);
  EXPECT_THAT(hung[0].text, HasSubstr("no answer within 0.1 s: "));
  const auto crash = []() -> std::vector<Measurement> {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    return {};
  };
  const std::vector<Measurement> crashed = RunApart("gpu", budget_, Seconds{5}, crash);
  EXPECT_FALSE(crashed[0].ok);
  EXPECT_EQ(crashed[0].name, "gpu");
  EXPECT_THAT(crashed[0].text, HasSubstr("died of signal 11"));
}

}  // namespace
}  // namespace lockstep::probe
