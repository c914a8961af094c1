#include "lockstep/agent/stacks.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/agent/proc.h"
#include "lockstep/agent/test_child.h"
#include "lockstep/base/json_text.h"

// The threads of the victim. Not static and never inlined: their names are what the tests look for.
extern "C" {
[[gnu::noinline]] void VictimLoops() {
  for (;;) asm volatile("");
}
[[gnu::noinline]] void VictimSleeps() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}
[[gnu::noinline]] void VictimLocksTwice() {
  static std::mutex mutex;
  mutex.lock();
  mutex.lock();
}
[[gnu::noinline]] void VictimReads() {
  std::array<int, 2> ends;
  char letter;
  LS_CHECK(pipe(ends.data()) == 0);
  for (;;) LS_CHECK(read(ends[0], &letter, 1) == 1);
}
}

namespace lockstep::agent {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kSelf[] = "/proc/self/exe";

int VictimMain() {
  const std::vector<std::jthread> threads = [] {
    std::vector<std::jthread> all;
    all.emplace_back(VictimLoops);
    all.emplace_back(VictimSleeps);
    all.emplace_back(VictimLocksTwice);
    return all;
  }();
  LS_CHECK(write(STDOUT_FILENO, "ready\n", 6) == 6);
  VictimReads();
  return 0;
}

const ThreadStack* ThreadIn(const StackDump& dump, const std::string& function) {
  for (const ThreadStack& thread : dump.threads)
    for (const std::string& frame : thread.frames)
      if (frame.starts_with(function + " ")) return &thread;
  return nullptr;
}

bool Waits(const StackDump& dump, const char* function, Wait wait) {
  const ThreadStack* thread = ThreadIn(dump, function);
  return thread != nullptr && thread->wait == wait;
}

// The victim says "ready" before all of its threads are where they go, so the first dumps may be too early.
StackDump DumpWhenSettled(pid_t pid) {
  for (int attempt = 0;; ++attempt) {
    StackDump dump = CollectNative(pid, kSelf, Seconds{20}).value();
    const bool settled = Waits(dump, "VictimLoops", Wait::kRunning) && ThreadIn(dump, "VictimSleeps") != nullptr &&
                         Waits(dump, "VictimLocksTwice", Wait::kForever) && Waits(dump, "VictimReads", Wait::kExternal);
    if (settled || attempt == 500) return dump;
  }
}

// A stopped thread that a tracer let go of runs for an instant before it stops again.
detect::ProcState SettledState(pid_t pid) {
  detect::RankSample sample;
  for (int attempt = 0; attempt < 100'000 && sample.state != detect::ProcState::kStopped; ++attempt)
    SampleCheap(pid, sample);
  EXPECT_FALSE(sample.traced);
  return sample.state;
}

void ExpectVictimRead(const StackDump& dump) {
  EXPECT_EQ(dump.unreadable, "");
  ASSERT_EQ(dump.threads.size(), 4u);
  EXPECT_EQ(dump.threads.front().tid, dump.pid);
  for (const char* function : {"VictimLoops", "VictimSleeps", "VictimLocksTwice", "VictimReads"})
    ASSERT_NE(ThreadIn(dump, function), nullptr) << function << " in " << ToJson(dump).dump(1);
  EXPECT_EQ(ThreadIn(dump, "VictimReads")->tid, dump.pid);
}

TEST(Stacks, EveryThreadIsNamed) {
  TestChild victim({kSelf, "victim"});
  ASSERT_EQ(victim.Line(), "ready");
  const StackDump dump = DumpWhenSettled(victim.pid());
  ExpectVictimRead(dump);
  EXPECT_EQ(ThreadIn(dump, "VictimLoops")->wait, Wait::kRunning);
  EXPECT_EQ(ThreadIn(dump, "VictimLocksTwice")->syscall_name, "futex");
  EXPECT_EQ(ThreadIn(dump, "VictimReads")->syscall_name, "read");
  // clock_nanosleep; the dumps before this one may have made it a restarted call
  EXPECT_NE(ThreadIn(dump, "VictimSleeps")->wait, Wait::kForever);
}

TEST(Stacks, AStoppedProcessIsReadAndStaysStopped) {
  TestChild victim({kSelf, "victim"});
  ASSERT_EQ(victim.Line(), "ready");
  DumpWhenSettled(victim.pid());
  victim.Stop();
  for (int i = 0; i < 3; ++i) {
    ExpectVictimRead(CollectNative(victim.pid(), kSelf, Seconds{20}).value());
    EXPECT_EQ(SettledState(victim.pid()), detect::ProcState::kStopped);
  }
  victim.Continue();
  ExpectVictimRead(DumpWhenSettled(victim.pid()));
}

TEST(Stacks, ManyAtOnceInOrder) {
  TestChild one({kSelf, "victim"}), other({kSelf, "victim"});
  ASSERT_EQ(one.Line() + other.Line(), "readyready");
  const std::array<pid_t, 3> pids = {other.pid(), one.pid(), 1 << 22};
  const auto dumps = CollectNative(pids, kSelf, Seconds{20});
  EXPECT_EQ(dumps[0]->pid, other.pid());
  EXPECT_EQ(dumps[1]->pid, one.pid());
  EXPECT_EQ(dumps[2]->unreadable, "the process is gone");
}

TEST(Stacks, AReaderThatHangsIsAbandoned) {
  setenv("LOCKSTEP_TEST_READER", "hang", 1);
  const auto dump = CollectNative(getpid(), kSelf, Seconds{0.05});
  unsetenv("LOCKSTEP_TEST_READER");
  EXPECT_THAT(Message(dump.status()), HasSubstr("could not be read in time"));
}

TEST(Stacks, AReaderThatFailsSaysSo) {
  EXPECT_THAT(Message(CollectNative(1, "/bin/false", Seconds{20}).status()), HasSubstr("reader"));
  EXPECT_THAT(Message(CollectNative(1, "/nonexistent", Seconds{20}).status()), StartsWith("/nonexistent stacks 1"));
}

TEST(Stacks, WithoutTheRightProcStillTells) {
  const char* foreign = getenv("LOCKSTEP_TEST_FOREIGN");
  if (foreign == nullptr) GTEST_SKIP() << "runs as part of AsAnOrdinaryUser";
  const StackDump dump = CollectNative(std::atoi(foreign), kSelf, Seconds{20}).value();
  EXPECT_THAT(dump.unreadable, StartsWith("no right to trace the process"));
  ASSERT_EQ(dump.threads.size(), 4u);
  EXPECT_THAT(dump.threads.front().comm, Not(IsEmpty()));
  EXPECT_THAT(dump.threads.front().frames, IsEmpty());
  EXPECT_EQ(dump.threads.front().state, 'S');
}

// Runs the tests above as user 65534, from a copy of this program that this user can reach.
TEST(Stacks, AsAnOrdinaryUser) {
  if (getuid() != 0) GTEST_SKIP() << "this run is by an ordinary user already";
  const std::string copy = "/tmp/lockstep_stacks_test." + std::to_string(getpid());
  std::filesystem::copy_file(std::filesystem::read_symlink(kSelf), copy);
  TestChild victim({kSelf, "victim"});
  ASSERT_EQ(victim.Line(), "ready");
  DumpWhenSettled(victim.pid());
  setenv("LOCKSTEP_TEST_FOREIGN", std::to_string(victim.pid()).c_str(), 1);
  TestChild tests({copy, "as-nobody"});
  const std::string output = tests.Rest();
  EXPECT_EQ(tests.Wait(), 0) << output;
  unsetenv("LOCKSTEP_TEST_FOREIGN");
  std::filesystem::remove(copy);
}

TEST(Stacks, JsonHoldsEverything) {
  StackDump dump;
  dump.pid = 7;
  dump.unreadable = "why";
  dump.threads.push_back({8, "python3", 'S', 202, "futex", Wait::kForever, "futex_do_wait", {"f (a.so)", "a.so+0x1"}});
  const StackDump back = StackDumpFromJson(ToJson(dump)).value();
  EXPECT_EQ(ToJson(back), ToJson(dump));
  EXPECT_EQ(back.threads[0].wait, Wait::kForever);
  EXPECT_FALSE(StackDumpFromJson(ParseJson("{}")).ok());
  EXPECT_FALSE(StackDumpFromJson(ParseJson(R"({"pid":1,"unreadable":"","threads":[{"tid":"x"}]})")).ok());
}

// A cgroup of one's own, where this user may make one; "" elsewhere.
std::string MakeCgroup(const std::string& mount) {
  const std::string path = mount + "/lockstep_test_" + std::to_string(getpid());
  return mkdir(path.c_str(), 0755) == 0 ? path : "";
}
void Put(const std::string& path, const std::string& text) {
  const Fd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  LS_CHECK(write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()), "{}", path);
}

// Freezes a victim by v1 or v2; returns what the reader says of it.
StackDump DumpFrozen(const std::string& group, const char* file, const char* freeze, const char* thaw) {
  TestChild victim({kSelf, "victim"});
  LS_CHECK(victim.Line() == "ready");
  DumpWhenSettled(victim.pid());
  Put(group + "/cgroup.procs", std::to_string(victim.pid()));
  Put(group + file, freeze);
  detect::RankSample sample;
  // v1 says FREEZING until the last thread stands.
  for (int attempt = 0; attempt < 100'000 && ReadFile(group + file).value_or("") != freeze + std::string("\n");
       ++attempt) {
  }
  for (int attempt = 0; attempt < 100'000 && !sample.frozen; ++attempt) SampleCheap(victim.pid(), sample);
  EXPECT_TRUE(sample.frozen);
  const StackDump dump = CollectNative(victim.pid(), kSelf, Seconds{20}).value();
  Put(group + file, thaw);
  ExpectVictimRead(DumpWhenSettled(victim.pid()));
  Put(std::filesystem::path(group).parent_path().string() + "/cgroup.procs", std::to_string(victim.pid()));
  rmdir(group.c_str());
  return dump;
}

TEST(Stacks, AProcessFrozenByV1IsNotWaitedFor) {
  const std::string group = MakeCgroup("/sys/fs/cgroup/freezer");
  if (group.empty()) GTEST_SKIP() << "no right to make a v1 freezer cgroup";
  const StackDump dump = DumpFrozen(group, "/freezer.state", "FROZEN", "THAWED");
  EXPECT_THAT(dump.unreadable, HasSubstr("frozen by a cgroup"));
  ASSERT_EQ(dump.threads.size(), 4u);
  EXPECT_EQ(dump.threads.front().syscall_name, "read");
}

TEST(Stacks, AProcessFrozenByV2IsRead) {
  std::string group = MakeCgroup("/sys/fs/cgroup/unified");
  if (group.empty()) group = MakeCgroup("/sys/fs/cgroup");
  if (group.empty() || !std::filesystem::exists(group + "/cgroup.freeze"))
    GTEST_SKIP() << "no right to make a v2 cgroup";
  ExpectVictimRead(DumpFrozen(group, "/cgroup.freeze", "1", "0"));
}

// This program is also the reader, the victim, and its own tests as another user.
int RunAs(const std::string& role, char** argv) {
  if (role == "victim") return VictimMain();
  if (role == "stacks") {
    if (getenv("LOCKSTEP_TEST_READER") != nullptr) pause();
    return StacksMain(std::atoi(argv[2]));
  }
  LS_CHECK(role == "as-nobody", "no role {}", role);
  LS_CHECK(setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
  return execl(argv[0], argv[0], nullptr);
}

}  // namespace
}  // namespace lockstep::agent

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') return lockstep::agent::RunAs(argv[1], argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
