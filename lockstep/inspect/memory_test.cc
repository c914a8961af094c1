#include "lockstep/inspect/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Memory : public testing::Test {
 protected:
  std::vector<std::string> Judge(const MemoryState& state) {
    Reading reading;
    judge_.Judge(state, At(at_ += 5), reading);
    missing_ = reading.missing;
    std::vector<std::string> seen;
    for (const Condition& condition : reading.conditions)
      seen.push_back(fmt::format("{} {}: {} ({})", condition.item, condition.subject, condition.text,
                                 FaultClassName(condition.fault.value_or(Settings()[condition.item].fault))));
    return seen;
  }
  double at_ = 0;
  std::map<std::string, std::string> missing_;
  MemoryJudge judge_{Settings()};
};

constexpr uint64_t kGib = uint64_t{1} << 30;

TEST_F(Memory, Pressure) {
  EXPECT_THAT(Judge({.pressure = 19.9, .total = kGib, .available = kGib}), IsEmpty());
  EXPECT_THAT(Judge({.pressure = 20.0, .total = kGib, .available = kGib}),
              ElementsAre("memory_pressure machine: all waited for memory 20.0 % of 10 s (warning)"));
  Judge({.total = kGib, .available = kGib});
  EXPECT_EQ(missing_.count("memory_pressure"), 1U);
}

TEST_F(Memory, WhatIsLeft) {
  EXPECT_THAT(Judge({.pressure = 0, .total = 100 * kGib, .available = 2 * kGib, .limit = 10 * kGib, .used = 9 * kGib}),
              ElementsAre("memory_low machine: 2.0 % of 100 GiB can be had (warning)"));
  EXPECT_THAT(Judge({.pressure = 0, .total = 100 * kGib, .available = 3 * kGib, .limit = 10 * kGib, .used = 11 * kGib}),
              ElementsAre("memory_low cgroup: 0.0 % of 10 GiB can be had (warning)"));
}

TEST_F(Memory, KillsOfOursAndOfOthers) {
  MemoryState state{.pressure = 0, .total = kGib, .available = kGib, .machine_kills = 7, .cgroup_kills = 3};
  EXPECT_THAT(Judge(state), IsEmpty()) << "before our time";
  state.machine_kills = 8;
  EXPECT_THAT(Judge(state),
              ElementsAre("oom_kill machine: 1 processes were killed for want of memory in 60 s (warning)"));
  state.cgroup_kills = 4;
  EXPECT_THAT(Judge(state),
              ElementsAre("oom_kill cgroup: 1 processes were killed for want of memory in 60 s (software)"));
  for (int i = 0; i < 11; ++i) Judge(state);
  EXPECT_THAT(Judge(state), IsEmpty());
}

TEST(MemoryCgroup, FindsV1V2AndContainers) {
  constexpr char kV1[] =
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(FindMemoryCgroup(kV1, "4:memory:/a/b\n0::/\n").directory, "/sys/fs/cgroup/memory/a/b");
  constexpr char kV2[] = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  const MemoryCgroup v2 = FindMemoryCgroup(kV2, "0::/user.slice\n");
  EXPECT_EQ(v2.directory, "/sys/fs/cgroup/user.slice");
  EXPECT_TRUE(v2.v2);
  constexpr char kContainer[] = "35 31 0:32 /docker/12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
  EXPECT_EQ(FindMemoryCgroup(kContainer, "4:memory:/docker/12\n").directory, "/sys/fs/cgroup/memory");
  EXPECT_EQ(FindMemoryCgroup("", "").directory, "");
}

TEST(MemoryReader, V2WithALimitAboveOurs) {
  const TestTree fake;
  const std::string job = "/sys/fs/cgroup/slurm/job";
  fake.Write("/proc/pressure/memory",
             "some avg10=50.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=12.50 avg60=0.00 avg300=0.00 total=0");
  fake.Write("/proc/meminfo", "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:     600 kB");
  fake.Write("/proc/vmstat", "pgfault 7\noom_kill 5");
  fake.Write(job + "/memory.max", "max");
  fake.Write(job + "/memory.current", "100");
  fake.Write(job + "/memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\noom_group_kill 0");
  fake.Write("/sys/fs/cgroup/slurm/memory.max", "1000");
  fake.Write("/sys/fs/cgroup/slurm/memory.current", "900");
  fake.Write("/sys/fs/cgroup/slurm/memory.stat", "anon 1\ninactive_file 300");
  const MemoryState state = ReadMemory(fake.tree(), {job, "/sys/fs/cgroup", true});
  EXPECT_EQ(state.pressure, 12.5);
  EXPECT_EQ(state.total, 1000U * 1024);
  EXPECT_EQ(state.available, 600U * 1024);
  EXPECT_EQ(state.machine_kills, 5U);
  EXPECT_EQ(state.cgroup_kills, 2U);
  EXPECT_EQ(state.limit, 1000U);
  EXPECT_EQ(state.used, 600U);
  EXPECT_EQ(state.limit_hits, 9U);
}

TEST(MemoryReader, V1) {
  const TestTree fake;
  fake.Write("/m/job/memory.limit_in_bytes", "5000");
  fake.Write("/m/job/memory.usage_in_bytes", "4000");
  fake.Write("/m/job/memory.stat", "inactive_file 1\ntotal_inactive_file 500");
  fake.Write("/m/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3");
  fake.Write("/m/job/memory.failcnt", "8");
  fake.Write("/m/memory.limit_in_bytes", "9223372036854771712");
  const MemoryState state = ReadMemory(fake.tree(), {"/m/job", "/m", false});
  EXPECT_EQ(state.limit, 5000U);
  EXPECT_EQ(state.used, 3500U);
  EXPECT_EQ(state.cgroup_kills, 3U);
  EXPECT_EQ(state.limit_hits, 8U);
}

}  // namespace
}  // namespace lockstep::inspect
