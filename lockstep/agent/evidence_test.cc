// What is kept of an incident is what `lockstep diagnose` reads.
#include "lockstep/agent/evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/stacks_text.h"

namespace lockstep::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using trace::ProcessRole;

RankStacks TwoProcesses() {
  RankStacks stacks(2);
  stacks[0].rank = RankId(5);
  stacks[0].pid = 90;
  stacks[0].python.threads = {{false, {"/usr/lib/python3.11/threading.py:324 in wait"}},
                              {true, {"/home/me/job.py:3 in step", "/home/me/job.py:9 in <module>"}}};
  stacks[0].native.pid = 90;
  stacks[0].native.threads.resize(2);
  stacks[0].native.threads[0] = {90,      "python3",      'S',          202,
                                 "futex", Wait::kForever, "futex_wait", {"c10d::Work::wait (a.so)"}};
  stacks[0].native.threads[1] = {91, "python3", 'R', -1, "", Wait::kRunning, "", {"x.so+0x12", "libc.so.6+0x3"}};
  stacks[1].rank = RankId(5);
  stacks[1].role = ProcessRole::kDataWorker;
  stacks[1].pid = 95;
  stacks[1].python.unreadable = "no faulthandler is registered in the process";
  stacks[1].native.unreadable = "no right to trace the process: Operation not permitted";
  return stacks;
}

TEST(Evidence, IsReadBackAsItWas) {
  const auto read = trace::ParseStacks(StacksText(TwoProcesses(), "node7"), "stacks.txt");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(*read, SizeIs(2));
  const trace::ProcessStack& trainer = (*read)[0];
  EXPECT_EQ(trainer.node, "node7");
  EXPECT_EQ(trainer.rank, 5);
  EXPECT_EQ(trainer.pid, 90);
  EXPECT_THAT(trainer.python, ElementsAre("/home/me/job.py:3 in step", "/home/me/job.py:9 in <module>"));
  EXPECT_THAT(trainer.native, ElementsAre("c10d::Work::wait (a.so)"));
  EXPECT_THAT(trainer.others, ElementsAre(ElementsAre("x.so+0x12", "libc.so.6+0x3")));
  const trace::ProcessStack& worker = (*read)[1];
  EXPECT_EQ(worker.role, ProcessRole::kDataWorker);
  EXPECT_EQ(worker.pid, 95);
  EXPECT_THAT(worker.native, IsEmpty());
  EXPECT_EQ(worker.unreadable,
            "no faulthandler is registered in the process; no right to trace the process: Operation not permitted");
}

TEST(Evidence, TheDetectorHearsOfRanksAlone) {
  const auto samples = Samples(TwoProcesses(), Nanos{7});
  ASSERT_THAT(samples, SizeIs(1));
  EXPECT_EQ(samples[0].rank, RankId(5));
}

}  // namespace
}  // namespace lockstep::agent
