#include "lockstep/trace/stacks_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kText[] =
    "node node3\n"
    "rank 4 (pid 812)\n"
    " Python\n"
    "  thread\n"
    "    /usr/lib/python3.11/threading.py:324 in wait\n"
    "  main thread\n"
    "    /usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py:1541 in all_reduce\n"
    "    /home/me/job.py:34 in main\n"
    " native\n"
    "  thread 812 python3 state S in futex (futex_wait)\n"
    "    pthread_cond_wait (libc.so.6)\n"
    "    c10d::Work::wait (libtorch_cpu.so.1.13.0)\n"
    "  thread 813 python3 state S in epoll_wait\n"
    "    epoll_wait (libc.so.6)\n"
    "\n"
    "rank 4, data_worker (pid 820)\n"
    " Python\n"
    "  not readable: no faulthandler is registered in the process\n"
    " native\n"
    "  thread 820 pt_data_worker state D\n"
    "  not readable: no right to trace the process: Operation not permitted\n";

TEST(StacksText, ReadsProcessesOfANode) {
  const auto stacks = ParseStacks(kText, "stacks.txt");
  ASSERT_TRUE(stacks.ok()) << stacks.status();
  ASSERT_THAT(*stacks, SizeIs(2));
  const ProcessStack& trainer = (*stacks)[0];
  EXPECT_EQ(trainer.node, "node3");
  EXPECT_EQ(trainer.rank, 4);
  EXPECT_EQ(trainer.pid, 812);
  EXPECT_EQ(trainer.role, ProcessRole::kTrainer);
  EXPECT_THAT(trainer.python, ElementsAre(HasSubstr("in all_reduce"), HasSubstr("in main")));
  EXPECT_THAT(trainer.native, ElementsAre(HasSubstr("pthread_cond_wait"), HasSubstr("c10d::Work::wait")));
  EXPECT_THAT(trainer.others, ElementsAre(ElementsAre(HasSubstr("epoll_wait"))));
  EXPECT_EQ(trainer.unreadable, "");
  EXPECT_FALSE(trainer.stopped);
  const ProcessStack& worker = (*stacks)[1];
  EXPECT_EQ(worker.role, ProcessRole::kDataWorker);
  EXPECT_EQ(worker.rank, 4);
  EXPECT_THAT(worker.python, IsEmpty());
  EXPECT_THAT(worker.native, IsEmpty());
  EXPECT_EQ(worker.unreadable,
            "no faulthandler is registered in the process; no right to trace the process: Operation not permitted");
}

TEST(StacksText, AProcessIsStoppedIfAllItsThreadsAre) {
  const auto stopped = [](const std::string& one, const std::string& other) {
    const auto stacks =
        ParseStacks("rank 1 (pid 2)\n native\n  thread 2 " + one + "\n    main (x)\n  thread 3 " + other + "\n", "x");
    return stacks.ok() && stacks->front().stopped;
  };
  EXPECT_TRUE(stopped("python3 state T in futex (do_signal_stop)", "python3 state T"));
  EXPECT_FALSE(stopped("python3 state S", "python3 state T"));
  EXPECT_FALSE(stopped("python3 state T", "python3 state S"));
  EXPECT_FALSE(stopped("my state T state S", "python3 state T"));
}

TEST(StacksText, LinesMayEndAsOnWindows) {
  const auto stacks = ParseStacks("rank 1 (pid 2)\r\n Python\r\n  main thread\r\n    /a/job.py:3 in main\r\n", "x");
  ASSERT_TRUE(stacks.ok()) << stacks.status();
  EXPECT_THAT(stacks->front().python, ElementsAre("/a/job.py:3 in main"));
}

TEST(StacksText, RefusesOtherText) {
  const auto error = [](std::string_view text) { return std::string(Message(ParseStacks(text, "x").status())); };
  EXPECT_EQ(error(""), "x: no stacks; expected lines as \"rank 0 (pid 12)\"");
  EXPECT_EQ(error("node a\n"), "x: no stacks; expected lines as \"rank 0 (pid 12)\"");
  EXPECT_THAT(error("rank 0 (pid 1)\n\nhello\n"),
              HasSubstr("x:3: expected \"rank N (pid P)\" or \"rank N, data_worker|checkpoint_writer|other (pid P)\", "
                        "found \"hello\""));
  for (const char* head : {"rank x (pid 1)", "rank -1 (pid 1)", "rank 99999999999 (pid 1)", "rank 1 (pid x)",
                           "rank 1, cook (pid 1)", "rank 1", "rank 20000000 (pid 1)"})
    EXPECT_THAT(error(head), HasSubstr("x:1: expected \"rank N")) << head;
  EXPECT_THAT(error("    frame\n"), HasSubstr("x:1: expected \"rank N (pid P)\" first"));
}

class Files : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) { return folder_.Write(name, text); }
  const TestFolder folder_;
};

TEST_F(Files, OfSeveralNodesInOneFolder) {
  Write("b.txt", "node b\nrank 2 (pid 1)\n");
  Write("a.txt", "rank 0 (pid 1)\nrank 1 (pid 2)\n");
  Write("notes", "something else\n");
  EXPECT_TRUE(HasStacks(folder_.path()));
  EXPECT_FALSE(HasStacks(folder_ / "notes"));
  EXPECT_FALSE(HasStacks(folder_ / "none"));
  const auto stacks = ReadStackFiles({folder_.path()});
  ASSERT_TRUE(stacks.ok()) << stacks.status();
  ASSERT_THAT(*stacks, SizeIs(3));
  EXPECT_EQ((*stacks)[2].node, "b");
}

TEST_F(Files, ARankTwiceIsOfTwoMoments) {
  const std::string first = Write("a", "rank 3 (pid 1)\nrank 3, data_worker (pid 2)\nrank 3, data_worker (pid 3)\n");
  const std::string second = Write("b", "rank 3 (pid 9)\n");
  EXPECT_TRUE(ReadStackFiles({first}).ok());
  const std::string error(Message(ReadStackFiles({first, second}).status()));
  EXPECT_THAT(error, HasSubstr("b: rank 3 is in "));
  EXPECT_THAT(error, HasSubstr("a too; expected the stacks of one moment, each rank once"));
}

TEST_F(Files, AFolderWithoutAny) {
  EXPECT_THAT(std::string(Message(ReadStackFiles({folder_.path()}).status())), HasSubstr("no file of stacks there"));
  EXPECT_FALSE(ReadStackFiles({folder_ / "gone"}).ok());
}

}  // namespace
}  // namespace lockstep::trace
