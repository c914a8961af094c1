// Readings of the real kernel: an interface that is set down, a file system that fills up or goes, a cgroup whose limit
// kills. Each skips in one line where it has not the rights.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/inspect/kernel_log_reader.h"
#include "lockstep/inspect/memory.h"
#include "lockstep/inspect/mount.h"
#include "lockstep/inspect/nic.h"
#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::IsEmpty;

// Mounts and interfaces of our own from here on; "" or why not.
const std::string& Isolation() {
  static const std::string why = [] {
    if (unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) return std::string("unshare: ") + std::strerror(errno);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return std::string("no private mounts");
    return std::string();
  }();
  return why;
}

std::vector<std::string> Seen(const Reading& reading) {
  std::vector<std::string> seen;
  for (const Condition& condition : reading.conditions) seen.push_back(condition.item + " " + condition.subject);
  return seen;
}

class RealMount : public testing::Test {
 protected:
  void SetUp() override {
    if (!Isolation().empty()) GTEST_SKIP() << "needs mounts of its own: " << Isolation();
    if (mount("none", point_.path().c_str(), "tmpfs", 0, "size=2m") != 0)
      GTEST_SKIP() << "mount: " << std::strerror(errno);
    reader_ = MountReader(Settings(), {Tree(), {point_.path()}});
  }
  void TearDown() override { umount2(point_.path().c_str(), MNT_DETACH); }
  std::vector<std::string> Read() { return Seen(reader_->Read(clock_.Now())); }

  SystemClock clock_;
  const TestFolder point_;
  std::unique_ptr<Reader> reader_;
};

TEST_F(RealMount, FillsUp) {
  EXPECT_THAT(Read(), IsEmpty());
  const Fd file(open((point_ / "file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string block(65536, 'x');
  while (write(file.get(), block.data(), block.size()) > 0) {
  }
  EXPECT_THAT(Read(), testing::ElementsAre("disk_full " + point_.path()));
  ASSERT_EQ(ftruncate(file.get(), 0), 0);
  EXPECT_THAT(Read(), IsEmpty());
}

TEST_F(RealMount, GoesReadOnlyAndIsUnmounted) {
  EXPECT_THAT(Read(), IsEmpty());
  ASSERT_EQ(mount("none", point_.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=2m"), 0);
  EXPECT_THAT(Read(), testing::ElementsAre("disk_read_only " + point_.path()));
  ASSERT_EQ(umount(point_.path().c_str()), 0);
  EXPECT_THAT(Read(), testing::ElementsAre("mount_lost " + point_.path()));
}

// /sys shows the interfaces of who mounted it, so the test mounts one.
TEST(RealNic, LosesItsCarrier) {
  if (!Isolation().empty()) GTEST_SKIP() << "needs interfaces of its own: " << Isolation();
  const TestTree machine;
  std::filesystem::create_directories(machine.tree().Path("/sys"));
  const std::string sys = machine.tree().Path("/sys");
  if (mount("sysfs", sys.c_str(), "sysfs", 0, nullptr) != 0) GTEST_SKIP() << "mounting sysfs: " << std::strerror(errno);
  const auto ip = [](const std::string& arguments) {
    return system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
  };
  const bool made = ip("link add lsi0 type veth peer name lsi1") && ip("link set lsi0 up") && ip("link set lsi1 up");
  if (made) {
    Settings settings;
    settings.nics = {"lsi0"};
    const auto reader = NicReader(settings, {machine.tree(), {}});
    EXPECT_THAT(Seen(reader->Read(At(0))), IsEmpty());
    EXPECT_TRUE(ip("link set lsi1 down"));
    EXPECT_THAT(Seen(reader->Read(At(5))), testing::ElementsAre("nic_down lsi0"));
    EXPECT_TRUE(ip("link set lsi1 up"));
    EXPECT_THAT(Seen(reader->Read(At(10))), IsEmpty());
    EXPECT_TRUE(ip("link set lsi1 down") && ip("link set lsi1 up"));
    const Reading flapped = reader->Read(At(15));
    EXPECT_THAT(Seen(flapped), testing::ElementsAre("port_flapping lsi0"));
    EXPECT_TRUE(ip("link set lsi0 down"));
    EXPECT_THAT(Seen(reader->Read(At(60))), testing::ElementsAre("nic_down lsi0")) << "set down";
    EXPECT_TRUE(ip("link del lsi0"));
  }
  umount2(sys.c_str(), MNT_DETACH);
  if (!made) GTEST_SKIP() << "ip can't make a pair of interfaces here";
}

bool Put(const std::string& path, const std::string& text) {
  const Fd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Takes 64 MiB in a cgroup that has 8: the kernel ends it. The status of wait(2).
int Overdraw(const std::string& cgroup) {
  const pid_t child = fork();
  if (child == 0) {
    if (!Put(cgroup + "/cgroup.procs", "0")) _exit(9);
    constexpr size_t kBytes = 64 << 20;
    auto* memory = static_cast<volatile char*>(std::malloc(kBytes));
    for (size_t i = 0; memory != nullptr && i < kBytes; i += 4096) memory[i] = 1;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(RealMemory, ACgroupsLimitKills) {
  const Tree tree;
  MemoryCgroup own = FindMemoryCgroup(tree.OwnProc("mountinfo").value_or(""), tree.OwnProc("cgroup").value_or(""));
  if (own.directory.empty()) GTEST_SKIP() << "there is no memory cgroup here";
  MemoryCgroup made{own.mount + "/lockstep_inspect_test", own.mount, own.v2};
  if (own.v2) Put(own.mount + "/cgroup.subtree_control", "+memory");
  if (mkdir(made.directory.c_str(), 0755) != 0) GTEST_SKIP() << made.directory << ": " << std::strerror(errno);
  Put(made.directory + (own.v2 ? "/memory.swap.max" : "/memory.swappiness"), "0");
  const bool limited = Put(made.directory + (own.v2 ? "/memory.max" : "/memory.limit_in_bytes"), "8388608");
  MemoryJudge judge{Settings()};
  Reading before, after;
  const auto log = KernelLogReader(Settings(), {Tree(), {}});
  judge.Judge(ReadMemory(tree, made), At(0), before);
  const int status = limited ? Overdraw(made.directory) : 0;
  judge.Judge(ReadMemory(tree, made), At(5), after);
  rmdir(made.directory.c_str());
  if (!WIFSIGNALED(status)) GTEST_SKIP() << "its limit can't be set, or does not hold";
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_THAT(Seen(before), testing::Not(testing::Contains("oom_kill cgroup")));
  EXPECT_THAT(Seen(after), testing::Contains("oom_kill cgroup"));
  const Reading told = log->Read(At(5));
  if (!told.missing.empty()) return;  // the kernel shows its log to root alone
  EXPECT_THAT(Seen(told), testing::Contains(testing::StartsWith("kernel_oom ")));
}

}  // namespace
}  // namespace lockstep::inspect
