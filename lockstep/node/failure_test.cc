#include "lockstep/node/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep::node {
namespace {

using testing::HasSubstr;

agent::RunSpec Spec() {
  agent::RunSpec spec;
  spec.run_dir = "/nowhere";
  spec.command = {"train.py"};
  return spec;
}

control::RankExited Exit(int rank, int code, int64_t at, bool connection = false) {
  control::RankExited event{EpochId(1), RankId(rank), {code, 0}, {}, {}, Nanos{at}};
  event.exception = control::ExceptionInfo{"ValueError", "bad", "train.py:3 in main", connection};
  return event;
}

TEST(FirstFailure, IsTheEarliestThatIsNotALostConnection) {
  FirstFailure first;
  EXPECT_EQ(first.Table(Spec(), EpochId(1), {}), "");
  first.Add(Exit(0, 1, 10, true), 4710, 0, Nanos{50}, Nanos{50});
  first.Add(Exit(2, 7, 30), 4712, 0, Nanos{50}, Nanos{50});
  first.Add(Exit(1, 1, 40), 4711, 0, Nanos{50}, Nanos{50});
  const std::string table = first.Table(Spec(), EpochId(1), {});
  EXPECT_THAT(table, HasSubstr("train.py FAILED, first by rank 2"));
  EXPECT_THAT(table, HasSubstr("exitcode  : 7 (pid: 4712)"));
  EXPECT_THAT(table, HasSubstr("message   : ValueError: bad (at train.py:3 in main)"));
}

// It left with 0 while others waited for it.
TEST(FirstFailure, IsWhomTheVerdictBlames) {
  FirstFailure first;
  first.Add(Exit(0, 1, 10, true), 4710, 0, Nanos{50}, Nanos{50});
  first.Add({EpochId(1), RankId(1), {0, 0}, {}, {}, Nanos{11}}, 4711, 0, Nanos{50}, Nanos{50});
  const std::string table = first.Table(Spec(), EpochId(1), {RankId(1), RankId(4)});
  EXPECT_THAT(table, HasSubstr("train.py FAILED, first by rank 1"));
  EXPECT_THAT(table, HasSubstr("exitcode  : 0 (pid: 4711)"));
  EXPECT_THAT(table, HasSubstr("message   : none: it ended while others still trained"));
  EXPECT_THAT(first.Table(Spec(), EpochId(1), {RankId(4)}), HasSubstr("FAILED, first by rank 0"));
}

TEST(FirstFailure, OfSeveralNodesIsOfThisOne) {
  FirstFailure first;
  first.Add(Exit(0, 1, 10, true), 4710, 0, Nanos{50}, Nanos{50});
  agent::RunSpec spec = Spec();
  spec.place.nodes = 2;
  EXPECT_THAT(first.Table(spec, EpochId(1), {RankId(4)}), HasSubstr("FAILED, first on this node by rank 0"));
}

TEST(FirstFailure, WithoutTextEndsInNoColon) {
  FirstFailure first;
  control::RankExited event = Exit(0, 1, 10);
  event.exception->message = "";
  first.Add(event, 4710, 0, Nanos{50}, Nanos{50});
  EXPECT_THAT(first.Table(Spec(), EpochId(1), {}), HasSubstr("message   : ValueError (at train.py:3 in main)"));
}

TEST(FirstFailure, ASignalIsANegativeExitCode) {
  FirstFailure first;
  control::RankExited killed{EpochId(2), RankId(0), {0, SIGKILL}, {}, {}, Nanos{1}};
  first.Add(killed, 4711, 1, Nanos{2}, Nanos{2});
  EXPECT_THAT(first.Table(Spec(), EpochId(2), {}), HasSubstr("exitcode  : -9 (pid: 4711)"));
  EXPECT_THAT(first.Table(Spec(), EpochId(2), {}), HasSubstr("Signal 9 (SIGKILL) received by PID 4711"));
}

TEST(FirstFailure, OfAnotherEpochOrNoneIsNothing) {
  FirstFailure first;
  first.Add(Exit(0, 1, 10), 4710, 0, Nanos{50}, Nanos{50});
  EXPECT_EQ(first.Table(Spec(), EpochId(2), {}), "");
  control::RankExited clean{EpochId(2), RankId(0), {0, 0}, {}, {}, Nanos{60}};
  first.Add(clean, 4711, 1, Nanos{61}, Nanos{61});
  EXPECT_EQ(first.Table(Spec(), EpochId(2), {}), "");
}

}  // namespace
}  // namespace lockstep::node
