#include "lockstep/agent/proc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>

#include "lockstep/agent/test_child.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

using detect::ProcState;
using detect::RankSample;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// A tree of files that looks like /proc and the cgroup mounts.
class FakeProc : public testing::Test {
 protected:
  void SetUp() override {
    Write("mounts", "cgroup " + root_ / "v1 cgroup rw,relatime,freezer 0 0\ncgroup2 " + root_ / "v2 cgroup2 rw 0 0\n");
  }

  void Write(const std::string& path, const std::string& text) const { root_.Write(path, text); }
  // Fields 3 to 17 of proc(5), with 10 faults of each of the 4 kinds and 25 ticks of each of the 4 kinds.
  void AddProcess(int pid, char state, int parent, const std::string& comm = "python3") const {
    const std::string folder = std::to_string(pid);
    Write(folder + "/stat", folder + " (" + comm + ") " + state + " " + std::to_string(parent) +
                                " 1 1 0 -1 0 10 10 10 10 25 25 25 25 20 0 1 0\n");
    Write(folder + "/status",
          "Name:\tpython3\nTracerPid:\t0\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t9\n");
    Write(folder + "/io", "rchar: 100\nwchar: 20\nsyscr: 5\n");
    Write(folder + "/cgroup", "6:freezer:/job\n0::/job\n");
  }
  RankSample Cheap(int pid) const {
    RankSample sample;
    EXPECT_TRUE(ProcFs(root_.path()).SampleCheap(pid, sample));
    return sample;
  }

  const TestFolder root_;
};

TEST_F(FakeProc, States) {
  const std::pair<char, ProcState> states[] = {{'R', ProcState::kRunning}, {'S', ProcState::kSleeping},
                                               {'D', ProcState::kDisk},    {'T', ProcState::kStopped},
                                               {'Z', ProcState::kZombie},  {'I', ProcState::kSleeping}};
  for (const auto& [letter, state] : states) {
    AddProcess(10, letter, 1, "a) (b) T");
    EXPECT_EQ(Cheap(10).state, state) << letter;
  }
}

TEST_F(FakeProc, GoneIsNoError) {
  EXPECT_EQ(Cheap(10).state, ProcState::kGone);
  Write("10/stat", "");
  EXPECT_EQ(Cheap(10).state, ProcState::kGone);
  RankSample sample;
  ProcFs(root_.path()).SampleFull(10, sample);
  EXPECT_EQ(sample.faults, 0u);
}

TEST_F(FakeProc, TracersOtherThanOurOwnReaderCount) {
  AddProcess(10, 't', 1);
  AddProcess(20, 'S', 1);
  AddProcess(30, 'S', getpid());
  Write("10/status", "TracerPid:\t20\n");
  EXPECT_TRUE(Cheap(10).traced);
  Write("10/status", "TracerPid:\t30\n");
  RankSample sample;
  EXPECT_FALSE(ProcFs(root_.path()).SampleCheap(10, sample));
  EXPECT_FALSE(sample.traced);
}

TEST_F(FakeProc, FreezersOfBothVersions) {
  AddProcess(10, 'D', 1);
  EXPECT_FALSE(Cheap(10).frozen);
  Write("v1/job/freezer.state", "FROZEN\n");
  EXPECT_TRUE(Cheap(10).frozen);
  Write("v1/job/freezer.state", "THAWED\n");
  Write("v2/job/cgroup.events", "populated 1\nfrozen 0\n");
  EXPECT_FALSE(Cheap(10).frozen);
  Write("v2/job/cgroup.events", "populated 1\nfrozen 1\n");
  EXPECT_TRUE(Cheap(10).frozen);
  Write("10/cgroup", "6:freezer:/\n0::/\n");
  EXPECT_FALSE(Cheap(10).frozen);
}

// Three processes of 100 ticks, 40 faults, 120 bytes and 7 switches each; 100 ticks of 10 ms are 1 s.
TEST_F(FakeProc, CountersAreSumsOverDescendants) {
  AddProcess(10, 'S', 1);
  AddProcess(11, 'S', 10);
  AddProcess(12, 'R', 11);
  AddProcess(13, 'R', 1);
  RankSample sample;
  EXPECT_TRUE(ProcFs(root_.path()).SampleFull(10, sample));
  EXPECT_DOUBLE_EQ(ToSeconds(sample.cpu).value, 3.0 * 100 / static_cast<double>(sysconf(_SC_CLK_TCK)));
  EXPECT_EQ(sample.faults, 120u);
  EXPECT_EQ(sample.io_bytes, 360u);
  EXPECT_EQ(sample.switches, 21u);
  EXPECT_THAT(ProcFs(root_.path()).Descendants({10}), UnorderedElementsAre(11, 12));
  EXPECT_THAT(ProcFs(root_.path()).Descendants({11, 13}), UnorderedElementsAre(12));
  EXPECT_THAT(ProcFs(root_.path()).Children(10), ElementsAre(11));
}

TEST_F(FakeProc, UnreadableIoIsZero) {
  AddProcess(10, 'S', 1);
  std::filesystem::remove(root_ / "10/io");
  RankSample sample;
  EXPECT_TRUE(ProcFs(root_.path()).SampleFull(10, sample));
  EXPECT_EQ(sample.io_bytes, 0u);
  EXPECT_EQ(sample.faults, 40u);
}

TEST_F(FakeProc, SharedMemoryFiles) {
  AddProcess(10, 'S', 1);
  Write("10/maps",
        "7f00-7f01 rw-s 0 00:18 2 /dev/shm/torch_1\n7f01-7f02 r-xp 0 00:18 2 /lib/libc.so.6\n"
        "7f02-7f03 rw-s 0 00:18 3 /dev/shm/gone (deleted)\n7f03-7f04 rw-p 0 0 0\n");
  std::filesystem::create_directories(root_ / "10/fd");
  std::filesystem::create_symlink("/dev/shm/sem.x", root_ / "10/fd/3");
  std::filesystem::create_symlink("socket:[1]", root_ / "10/fd/4");
  const ProcFs proc(root_.path());
  EXPECT_THAT(proc.MappedShm(10), ElementsAre("/dev/shm/sem.x", "/dev/shm/torch_1"));
  EXPECT_THAT(proc.MappedShm(11), IsEmpty());
  EXPECT_TRUE(proc.MappedByAnyone("/dev/shm/torch_1"));
  EXPECT_FALSE(proc.MappedByAnyone("/dev/shm/gone"));
}

TEST(Proc, ALiveProcess) {
  RankSample sample;
  EXPECT_TRUE(SampleFull(getpid(), sample));
  EXPECT_EQ(sample.state, ProcState::kRunning);
  EXPECT_FALSE(sample.frozen || sample.traced);
  EXPECT_GT(sample.faults, 100u);
  EXPECT_GT(sample.io_bytes, 0u);
}

TEST(Proc, AStoppedChild) {
  TestChild child({"sleep", "1000"});
  child.Stop();
  RankSample sample;
  EXPECT_TRUE(SampleCheap(child.pid(), sample));
  EXPECT_EQ(sample.state, ProcState::kStopped);
  EXPECT_THAT(Children(getpid()), Contains(child.pid()));
}

TEST(Proc, OwnSharedMemory) {
  const std::string name = "/lockstep_proc_test_" + std::to_string(getpid()), path = "/dev/shm" + name;
  const Fd fd(shm_open(name.c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_TRUE(fd.valid());
  EXPECT_THAT(MappedShm(getpid()), Contains(path));
  EXPECT_TRUE(MappedByAnyone(path));
  shm_unlink(name.c_str());
  EXPECT_THAT(MappedShm(getpid()), Not(Contains(path)));
}

}  // namespace
}  // namespace lockstep::agent
