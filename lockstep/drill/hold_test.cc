#include "lockstep/drill/hold.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "lockstep/agent/proc.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/test_child.h"
#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::drill {
namespace {

namespace fs = std::filesystem;
using agent::TestChild;

constexpr Nanos kNever{INT64_MAX};
constexpr Nanos kNow{1};

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

detect::RankSample Look(pid_t pid) {
  detect::RankSample sample;
  agent::SampleCheap(pid, sample);
  return sample;
}

bool IsStopped(pid_t pid) { return Look(pid).state == detect::ProcState::kStopped; }
std::string GroupsOf(pid_t pid) { return ReadFile(fmt::format("/proc/{}/cgroup", pid)).value_or(""); }
Process Of(const TestChild& child) { return Process::Open(child.pid()).value(); }

uint64_t FreeIn(const std::string& directory) {
  struct statvfs space{};
  statvfs(directory.c_str(), &space);
  return static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
}

TEST(Stopped, GoesOnAfterwards) {
  TestChild child({"sleep", "100"});
  auto hold = HoldStopped(Of(child), kNever);
  ASSERT_TRUE(hold.ok()) << hold.status();
  EXPECT_TRUE(Eventually([&] { return IsStopped(child.pid()); }));
  EXPECT_TRUE((*hold)->GoesOn(kNow));
  hold->reset();
  EXPECT_TRUE(Eventually([&] { return !IsStopped(child.pid()); }));
}

TEST(Stopped, IsOverInTimeOrWithItsProcess) {
  TestChild child({"sleep", "100"});
  auto hold = HoldStopped(Of(child), Nanos{10});
  ASSERT_TRUE(hold.ok());
  EXPECT_TRUE((*hold)->GoesOn(Nanos{9}));
  EXPECT_FALSE((*hold)->GoesOn(Nanos{10}));
  auto longer = HoldStopped(Of(child), kNever);
  kill(child.pid(), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !(*longer)->GoesOn(kNow); }));
}

TEST(Frozen, IsThawedAndItsGroupIsGoneAfterwards) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may make a cgroup";
  TestChild child({"sleep", "100"});
  const std::string before = GroupsOf(child.pid());
  auto hold = HoldFrozen(Of(child), kNever);
  ASSERT_TRUE(hold.ok()) << hold.status();
  EXPECT_TRUE(Eventually([&] { return Look(child.pid()).frozen; }));
  EXPECT_NE(GroupsOf(child.pid()), before);
  hold->reset();
  EXPECT_FALSE(Look(child.pid()).frozen);
  EXPECT_EQ(GroupsOf(child.pid()), before);
}

TEST(Slow, IsAsBeforeAfterwards) {
  TestChild child({"sh", "-c", "while :; do :; done"});
  const std::string before = GroupsOf(child.pid());
  auto hold = HoldSlow(Of(child), 20, kNever);
  ASSERT_TRUE(hold.ok()) << hold.status();
  EXPECT_TRUE((*hold)->GoesOn(kNow));
  hold->reset();
  EXPECT_EQ(GroupsOf(child.pid()), before);
  EXPECT_TRUE(Eventually([&] { return !IsStopped(child.pid()); }));
}

TEST(Disk, IsFullAndGivenBack) {
  const std::string directory = "/dev/shm";
  const uint64_t before = FreeIn(directory);
  if (before < (32 << 20)) GTEST_SKIP() << directory << " has less than 32 MB free";
  auto hold = HoldDisk(directory, Bytes{before - (16 << 20)}, Nanos{10});
  ASSERT_TRUE(hold.ok()) << hold.status();
  EXPECT_LE(FreeIn(directory), before - (8 << 20));
  EXPECT_TRUE((*hold)->GoesOn(Nanos{9}));
  EXPECT_FALSE((*hold)->GoesOn(Nanos{10}));
  hold->reset();
  EXPECT_GE(FreeIn(directory), before - (8 << 20));
}

TEST(Disk, TooLittleIsSaid) {
  const auto hold = HoldDisk("/dev/shm", Bytes{UINT64_MAX / 2}, kNever);
  ASSERT_FALSE(hold.ok());
  EXPECT_NE(Message(hold.status()).find("no more than the margin"), std::string::npos);
}

TEST(Disk, ThatIsMemoryIsLeftAloneWhereMemoryIsScarce) {
  const std::string directory = "/dev/shm";
  const uint64_t before = FreeIn(directory);
  if (before < (32 << 20)) GTEST_SKIP() << directory << " has less than 32 MB free";
  const TestFolder proc;
  proc.Write("meminfo", "MemAvailable: 20000 kB\n");
  const absl::Status refused = CheckDisk(directory, Bytes{before - (16 << 20)}, {.proc = proc.path()});
  EXPECT_NE(Message(refused).find("this disk is memory"), std::string::npos) << refused;
  const absl::Status little = CheckDisk(directory, Bytes{before - (1 << 20)}, {.proc = proc.path()});
  EXPECT_TRUE(little.ok()) << little;
}

// A tmpfs gives back all that it had reserved when it meets its end.
TEST(Disk, IsFullThoughOthersWriteThere) {
  const TestFolder folder;
  const std::string& directory = folder.path();
  if (mount("none", directory.c_str(), "tmpfs", 0, "size=16m") != 0) GTEST_SKIP() << "mounting a tmpfs needs root";
  std::atomic<bool> over = false;
  std::thread other([&] {
    const Fd file(open((directory + "/other").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    while (!over) {
      [[maybe_unused]] const int done = fallocate(file.get(), 0, 0, 4 << 20) + ftruncate(file.get(), 0);
    }
  });
  int held = 0;
  for (int i = 0; i < 100; ++i) {
    const auto hold = HoldDisk(directory, Bytes{0}, kNever);
    if (!hold.ok()) continue;
    ++held;
    EXPECT_LE(FreeIn(directory), uint64_t{4 << 20});
  }
  EXPECT_GT(held, 0);
  over = true;
  other.join();
  umount(directory.c_str());
}

class Request : public ::testing::Test {
 protected:
  const TestFolder folder_;
  const std::string path_ = folder_ / "request.json";
};

TEST_F(Request, IsNotSentToAProcessThatWouldDieOfIt) {
  TestChild child({"sleep", "100"});
  const auto asked = AskWorker(Of(child), path_, "{}", kNever);
  ASSERT_FALSE(asked.ok());
  EXPECT_NE(Message(asked.status()).find("takes no requests"), std::string::npos);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(Request, ThatNobodyTakesIsWithdrawnAndSaid) {
  const std::string number = std::to_string(SIGRTMIN + agent::kDrillSignal);
  TestChild child({"bash", "-c", "trap : " + number + "; echo; while :; do sleep 0.01; done"});
  child.Line();
  auto asked = AskWorker(Of(child), path_, "{}", Nanos{10});
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_TRUE((*asked)->GoesOn(Nanos{9}));
  EXPECT_FALSE((*asked)->GoesOn(Nanos{10}));
  EXPECT_NE((*asked)->Failure(), "");
  asked->reset();
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(Request, IsOverWhenItIsTaken) {
  const std::string number = std::to_string(SIGRTMIN + agent::kDrillSignal);
  TestChild child({"bash", "-c", "trap 'rm " + path_ + "' " + number + "; echo; while :; do sleep 0.01; done"});
  child.Line();
  auto asked = AskWorker(Of(child), path_, "{}", kNever);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_TRUE(Eventually([&] { return !(*asked)->GoesOn(kNow); }));
  EXPECT_EQ((*asked)->Failure(), "");
}

}  // namespace
}  // namespace lockstep::drill
