#include "lockstep/control/story.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

// A rank is killed twice in ten minutes on the one node of a job, which is tested then.
Scenario TwoCrashes(const std::vector<incident::Finding>& found = {}) {
  JobSpec spec;
  spec.ranks = 4;
  Scenario job(std::move(spec));
  job.ComeUp(2);
  job.See(10, 12);
  job.Hear(13, Killed(1, 2, SIGKILL, Step(11, 12.5), 12.9));
  job.Restart(14, Checkpoint(1, 10));
  job.ComeUp(15);
  job.See(12, 18);
  job.Hear(20, Killed(2, 2, SIGKILL, Step(13, 19.5), 19.9));
  job.Hear(21, EpochStopped{EpochId(2)});
  job.Hear(24, Probed{EpochId(2), Rung::kDiagnose, found});
  job.Hear(24, RestoreChosen{EpochId(3), Checkpoint(2, 13), {}});
  job.ComeUp(25);
  job.See(14, 26);
  return job;
}

TEST(Story, TellsWhatWasTriedAndRefused) {
  const Scenario job = TwoCrashes();
  const Json first = *Story(job.state, 1, At(30));
  ASSERT_EQ(first["decisions"].size(), 1u);
  EXPECT_EQ(first["decisions"][0]["rung"], "reattempt");
  EXPECT_EQ(first["outcome"], "closed after 5.000 s: the job was back where it had been");
  const Json second = *Story(job.state, 2, At(30));
  ASSERT_EQ(second["decisions"].size(), 2u);
  EXPECT_EQ(second["decisions"][0]["rung"], "diagnose");
  EXPECT_EQ(second["decisions"][0]["reason"],
            "another crash after 5 s of training: it came back: is a machine behind it?");
  EXPECT_EQ(second["decisions"][1]["rung"], "reattempt");
  EXPECT_EQ(second["decisions"][1]["refused"], Json::array({"diagnose: it was tried, and did not help",
                                                            "rollback: there is no earlier version of the code",
                                                            "replay: it compares nodes, and the job has one"}));
  EXPECT_EQ(second["seen"][0], "-0.100 s  rank 2 was killed by a signal: SIGKILL (signal 9) in step 14");
  EXPECT_EQ(second["done"][0], "+1.000 s  stop-time diagnosis of 1 node");
  EXPECT_EQ(second["done"][1], "+4.000 s  stop-time diagnosis: nothing found");
  EXPECT_EQ(second["cost"]["decide_s"], 3.0);
  EXPECT_THAT(RenderText(second), HasSubstr("is a machine behind it?"));
}

TEST(Story, DatesWhatAProbeFoundToItsAnswer) {
  incident::Finding slow;
  slow.syndrome = incident::Syndrome::kMachineFault;
  slow.suspects = {{incident::Suspect::Kind::kNode, "0"}};
  slow.evidence = {"its memory is slow"};
  const Json second = *Story(TwoCrashes({slow}).state, 2, At(30));
  EXPECT_THAT(OneLine(second["seen"]), HasSubstr("\"+4.000 s  "));
  EXPECT_THAT(OneLine(second["seen"]), HasSubstr("its memory is slow"));
}

// Back is only who was away.
TEST(Story, OfAJobThatNeverLeftItsPlaceSaysThatItWentOn) {
  Scenario job = TwoCrashes();
  job.Hear(30, WatcherGone{At(28)});
  EXPECT_EQ((*Story(job.state, 3, At(31)))["outcome"], "closed after 2.000 s: the job went on");
  job.Hear(32, Suspect(3, 1, false, 31));
  job.See(15, 33);
  const Json named = *Story(job.state, 4, At(34));
  EXPECT_THAT(OneLine(named["done"]), HasSubstr("the job went on by itself"));
  EXPECT_EQ(named["outcome"], "closed after 1.000 s: the job went on");
}

TEST(Story, WhatIsAMomentBeforeIsNotMinusZero) {
  Scenario job = TwoCrashes();
  job.Hear(40, Killed(3, 0, SIGSEGV, Step(14, 39), 39.9998));
  EXPECT_EQ((*Story(job.state, 3, At(41)))["seen"][0].get<std::string>().substr(0, 10), "+0.000 s  ");
}

TEST(Story, OfAnOpenIncidentAndOfNone) {
  Scenario job = TwoCrashes();
  job.Hear(40, Killed(3, 0, SIGSEGV));
  EXPECT_EQ((*Story(job.state, 3, At(41)))["outcome"], "it is open; the job is stopping");
  EXPECT_EQ(Message(Story(job.state, 4, At(41)).status()),
            "there is no incident 4: this run has had 3; see lockstep incidents");
}

TEST(Story, EndsWithTheJob) {
  Scenario job = TwoCrashes();
  job.Hear(40, Raised(3, 1, "ValueError", Step(20, 39)));
  job.Restart(41, Checkpoint(3, 20));
  job.ComeUp(42);
  job.Hear(43, Raised(4, 1, "ValueError"));
  job.Hear(44, EpochStopped{EpochId(4)});
  const Json last = *Story(job.state, 4, At(45));
  EXPECT_EQ(last["decisions"].back()["rung"], "give_up");
  EXPECT_THAT(last["outcome"].get<std::string>(), HasSubstr("with the job: ValueError at train.py:41"));
  job.Hear(46, JobContinued{});  // too late to matter
  EXPECT_EQ((*Story(job.state, 4, At(47)))["outcome"], last["outcome"]);
  EXPECT_THAT((*Story(job.state, 3, At(45)))["outcome"].get<std::string>(), HasSubstr("incident 4 struck before"));
}

}  // namespace
}  // namespace lockstep::control
