// A real process writes to a real file system and is killed by SIGKILL before each of its system calls in turn.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// The child: waits for its tracer, writes and prunes.
[[noreturn]] void WriteTraced(const std::string& folder, const TestCheckpoint& checkpoint) {
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  raise(SIGSTOP);
  const std::unique_ptr<Disk> disk = PosixDisk();
  Store store(*disk, folder);
  const bool done = Write(store, checkpoint).ok() && store.Prune(1).ok();
  _exit(done ? 0 : 1);
}

// True when the child came to its end before `calls` system calls (its stops at entry and exit both count).
bool RunUntil(pid_t child, int calls) {
  int status = 0;
  waitpid(child, &status, 0);
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  for (int i = 0; i < calls; ++i) {
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status)) continue;
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return true;
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return false;
}

TEST(Kill, AtEverySystemCallLeavesTheOldOrTheNewCheckpoint) {
  const TestCheckpoint old(1, 7), next(2, 4), after(2, 6);
  const std::unique_ptr<Disk> disk = PosixDisk();
  const TestFolder all;
  int killed = 0;
  bool saw_old = false, saw_new = false;
  for (bool ended = false; !ended;) {
    const std::string folder = all / std::to_string(killed++);
    fs::create_directory(folder);
    Store store(*disk, folder);
    ASSERT_EQ(Write(store, old), absl::OkStatus());
    const pid_t child = fork();
    if (child == 0) WriteTraced(folder, next);
    ended = RunUntil(child, killed);
    const std::optional<Point> newest = NewestWhole(store);
    ASSERT_TRUE(newest) << "killed at stop " << killed;
    ASSERT_TRUE(Holds(store, *newest == old.point ? old : next)) << "killed at stop " << killed;
    saw_old = saw_old || *newest == old.point;
    saw_new = saw_new || *newest == next.point;
    ASSERT_EQ(store.ClearLeftovers(), absl::OkStatus());
    ASSERT_EQ(Write(store, after), absl::OkStatus()) << "killed at stop " << killed;
    fs::remove_all(folder);
  }
  EXPECT_TRUE(saw_old && saw_new);
  EXPECT_GT(killed, 80) << "each call is entered and left";
}

}  // namespace
}  // namespace lockstep::checkpoint
