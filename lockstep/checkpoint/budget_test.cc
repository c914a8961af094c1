#include "lockstep/checkpoint/budget.h"

#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::checkpoint {
namespace {

// A /proc and a cgroup tree of our own.
class Budget : public testing::Test {
 protected:
  void SetUp() override { Put("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"); }
  void Put(const std::string& path, const std::string& text) { root_.Write(path, text); }
  uint64_t Available() {
    const auto available = AvailableMemory({.proc = root_ / "proc", .cgroup = root_ / "cgroup"});
    EXPECT_TRUE(available.ok()) << available.status();
    return available.ok() ? available->value : 0;
  }
  const TestFolder root_;
};

TEST_F(Budget, WithoutCgroupsMemAvailableCounts) { EXPECT_EQ(Available(), 8000u * 1024); }

TEST_F(Budget, TheTightestCgroupAboveUsCounts) {
  Put("proc/self/cgroup", "0::/job/worker\n");
  Put("cgroup/job/worker/memory.max", "max\n");
  Put("cgroup/job/worker/memory.current", "100\n");
  Put("cgroup/job/memory.max", "5000000\n");
  Put("cgroup/job/memory.current", "1500000\n");
  EXPECT_EQ(Available(), 3'500'000u);
  Put("cgroup/job/memory.stat", "anon 7\ninactive_file 500000\n");
  EXPECT_EQ(Available(), 4'000'000u) << "page cache that nobody uses is free";
}

TEST_F(Budget, VersionOneHasItsOwnNames) {
  Put("proc/self/cgroup", "5:cpu,memory:/docker/abc\n0::/\n");
  Put("cgroup/memory/memory.limit_in_bytes", "3000000\n");  // in a container the path is the host's, the mount is ours
  Put("cgroup/memory/memory.usage_in_bytes", "1000000\n");
  Put("cgroup/memory/memory.stat", "inactive_file 9\ntotal_inactive_file 200000\n");
  EXPECT_EQ(Available(), 2'200'000u);
}

TEST_F(Budget, UsageAboveTheLimitLeavesNothing) {
  Put("proc/self/cgroup", "0::/\n");
  Put("cgroup/memory.max", "1000\n");
  Put("cgroup/memory.current", "2000\n");
  EXPECT_EQ(Available(), 0u);
}

TEST_F(Budget, SaysWhatIsMissing) {
  Put("proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_EQ(Message(AvailableMemory({.proc = root_ / "proc"}).status()),
            root_ / "proc/meminfo" + ": no line MemAvailable");
}

TEST(CheckBudget, ShowsTheSum) {
  BudgetRequest request;
  request.ranks = 4;
  request.per_slot = Bytes{1'200'000'000};
  EXPECT_TRUE(CheckBudget(request, Bytes{19'200'000'000}).ok());
  EXPECT_EQ(Message(CheckBudget(request, Bytes{6'200'000'000})),
            "checkpoint buffers: 4 ranks x 2 slots x 1.2 GB = 9.6 GB; 3.1 GB may be used (half of 6.2 GB available)");
  request.limit = Bytes{9'000'000'000};
  EXPECT_EQ(Message(CheckBudget(request, Bytes{99'000'000'000})),
            "checkpoint buffers: 4 ranks x 2 slots x 1.2 GB = 9.6 GB; 9.0 GB may be used (the limit of "
            "--checkpoint-memory)");
}

TEST(HumanBytes, RoundsUpIntoTheNextUnit) {
  EXPECT_EQ(HumanBytes(Bytes{0}), "0 B");
  EXPECT_EQ(HumanBytes(Bytes{999}), "999 B");
  EXPECT_EQ(HumanBytes(Bytes{999'960}), "1.0 MB");
  EXPECT_EQ(HumanBytes(Bytes{400'000'000}), "400.0 MB");
}

}  // namespace
}  // namespace lockstep::checkpoint
