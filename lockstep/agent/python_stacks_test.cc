#include "lockstep/agent/python_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "lockstep/agent/test_child.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Recorded from Python 3.11 with three threads.
constexpr char kDump[] = R"(Thread 0x00007f068bfff6c0 (most recent call first):
  File "/home/me/thr.py", line 4 in w
  File "/usr/lib/python3.11/threading.py", line 975 in run

Thread 0x00007f0690ad16c0 (most recent call first):
  <no Python frame>

Current thread 0x00007f0690d8c040 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/odd", line 2 in ".py", line 6 in <module>
)";

TEST(PythonStacks, ThreadsAndFrames) {
  const PythonStack stack = ParsePythonStacks(kDump);
  ASSERT_EQ(stack.threads.size(), 3u);
  EXPECT_THAT(stack.threads[0].frames,
              ElementsAre("/home/me/thr.py:4 in w", "/usr/lib/python3.11/threading.py:975 in run"));
  EXPECT_TRUE(stack.threads[1].frames.empty());
  EXPECT_FALSE(stack.threads[0].main || stack.threads[1].main);
  EXPECT_TRUE(stack.threads[2].main);
  EXPECT_THAT(stack.threads[2].frames, ElementsAre("/usr/lib/python3.11/threading.py:320 in wait",
                                                   "/home/me/odd\", line 2 in \".py:6 in <module>"));
}

TEST(PythonStacks, WithoutACurrentThreadTheOldestIsMain) {
  const PythonStack stack =
      ParsePythonStacks("Thread 0x1 (most recent call first):\n\nThread 0x2 (most recent call first):\n");
  EXPECT_TRUE(stack.threads.back().main);
}

TEST(PythonStacks, OtherTextHoldsNoThread) {
  for (const char* text : {"", "\n", "  File \"x.py\", line 1 in f\n", "garbage"})
    EXPECT_EQ(ParsePythonStacks(text).unreadable, "the answer holds no thread");
}

constexpr char kProgram[] = R"(
import faulthandler, signal, sys, threading
def helps(): threading.Event().wait()
def trains(): print("ready", flush=True); sys.stdin.read()
out = open(sys.argv[1], "w")
if sys.argv[2] == "register": faulthandler.register(signal.SIGRTMIN + 7, file=out, all_threads=True, chain=False)
threading.Thread(target=helps, daemon=True).start()
trains()
)";

class LivePython : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "no /usr/bin/python3";
    std::array<int, 2> ends;
    ASSERT_EQ(pipe(ends.data()), 0);
    dup2(ends[0], STDIN_FILENO);  // the children read from it for ever
  }
  std::vector<std::string> Command(const char* mode) const { return {"/usr/bin/python3", "-c", kProgram, path_, mode}; }

  const TestFolder folder_;
  const std::string path_ = folder_ / "stacks";
};

TEST_F(LivePython, Answers) {
  TestChild python(Command("register"));
  ASSERT_EQ(python.Line(), "ready");
  const PythonRequest request{python.pid(), path_};
  for (int round = 0; round < 20; ++round) {
    const PythonStack stack = RequestPythonStacks({&request, 1}, Seconds{20}).front();
    ASSERT_EQ(stack.unreadable, "");
    ASSERT_EQ(stack.threads.size(), 2u);
    EXPECT_TRUE(stack.threads.back().main);
    EXPECT_THAT(stack.threads.back().frames, ElementsAre("<string>:4 in trains", "<string>:8 in <module>"));
    EXPECT_THAT(stack.threads.front().frames, testing::Contains("<string>:3 in helps"));
  }
}

TEST_F(LivePython, IsNotSignalledWhenItCannotAnswer) {
  TestChild plain(Command("plain")), stopped(Command("register"));
  ASSERT_EQ(plain.Line() + stopped.Line(), "readyready");
  stopped.Stop();
  const std::array requests = {PythonRequest{plain.pid(), path_}, PythonRequest{stopped.pid(), path_},
                               PythonRequest{1 << 22, path_}};
  const std::vector<PythonStack> stacks = RequestPythonStacks(requests, Seconds{20});
  EXPECT_EQ(stacks[0].unreadable, "no faulthandler is registered in the process");
  EXPECT_EQ(stacks[1].unreadable, "the process is stopped, so it can't answer");
  EXPECT_EQ(stacks[2].unreadable, "the process is gone");
  EXPECT_EQ(kill(plain.pid(), 0), 0);
}

}  // namespace
}  // namespace lockstep::agent
