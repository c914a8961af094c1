// Against programs that stand for Slurm's: which of them it calls, with which words, and that none of them, whatever it
// does, makes anybody wait.
#include "lockstep/schedule/slurm_driver.h"

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <thread>

#include "lockstep/schedule/fake_programs.h"

namespace lockstep::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SlurmDriverTest : public testing::Test {
 protected:
  SlurmDriverTest() {
    fakes_.Add(
        "scontrol",
        "case \"$*\" in *'show job'*) echo 'JobId=9 Partition=p NumNodes=2 NumCPUs=4 Requeue=1 BatchFlag=1';; esac");
    fakes_.Add("squeue", "cat $folder/queue");
    fakes_.Add("sinfo", "printf 'n1\\nn2\\nn3\\n'");
    fakes_.Add("sbatch", "cat >$folder/script; echo '17|PENDING|0:00|' >>$folder/queue; echo 17");
    fakes_.Add("scancel", ": >$folder/queue");
    fakes_.Write("queue", "");
  }

  void Start(SlurmOptions options = {}) {
    options.request_name = "lockstep-x";
    if (options.script.empty() && options.command.empty()) options.command = {"/opt/lockstep", "--nproc-per-node", "2"};
    options.look_again = Seconds{0.05};
    auto started = StartSlurm(options);
    ASSERT_TRUE(started.ok()) << started.status();
    driver_ = *std::move(started);
  }

  // Until so many outcomes have come.
  std::vector<std::string> Texts(size_t count) {
    std::vector<std::string> texts;
    Until([&] {
      for (const Outcome& outcome : driver_->TakeOutcomes()) texts.push_back(outcome.text);
      return texts.size() >= count;
    });
    return texts;
  }

  static void Until(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(condition());
  }

  FakePrograms fakes_;
  std::unique_ptr<Driver> driver_;
  const Wanted one_{.machines = 1, .incident = 3, .here = {"n1", "n2", "laptop"}};
};

TEST_F(SlurmDriverTest, AsksForAMachineOfTheSameKind) {
  setenv("SLURM_JOB_ID", "9", 1);
  Start({.job = "9"});
  driver_->Want(one_);
  EXPECT_THAT(Texts(1), ElementsAre("asked Slurm for a machine: job 17"));
  EXPECT_THAT(fakes_.Calls("sbatch"),
              ElementsAre("sbatch|--parsable|--nodes=1|--no-requeue|--job-name=lockstep-x|--exclude=n[1-2]|--ntasks=1|"
                          "--partition=p|--cpus-per-task=2|/dev/stdin|/opt/lockstep|--nproc-per-node|2"));
  EXPECT_EQ(fakes_.Text("script"), kStandbyScript);
  EXPECT_EQ(driver_->counts().asked, 1);
  unsetenv("SLURM_JOB_ID");
}

TEST_F(SlurmDriverTest, AsksForNoMachineWithoutTheJobsGpus) {
  fakes_.Add("scontrol", "echo 'JobId=9 Partition=p NumNodes=2 NumCPUs=4 TRES=cpu=4,gres/gpu=15'");
  Start({.job = "9"});
  driver_->Want(one_);
  EXPECT_THAT(Texts(1).front(), HasSubstr("TRES=cpu=4,gres/gpu=15 on 2 nodes does not tell what each has"));
  EXPECT_THAT(fakes_.Calls("sbatch"), IsEmpty());
}

TEST_F(SlurmDriverTest, AsksOnceHoweverOftenItIsWanted) {
  Start();
  for (int i = 0; i < 3; ++i) driver_->Want(one_);
  Texts(1);
  driver_->Want({.machines = 1, .incident = 4, .here = {"n1", "n2"}});
  const size_t looked = fakes_.Calls("squeue").size();
  Until([&] { return fakes_.Calls("squeue").size() > looked + 3; });
  EXPECT_THAT(fakes_.Calls("sbatch"), SizeIs(1));
}

TEST_F(SlurmDriverTest, DoesNotAskForWhatAnotherCoordinatorHasAskedFor) {
  fakes_.Write("queue", "12|PENDING|0:00|\n");
  Start();
  driver_->Want(one_);
  Until([&] { return fakes_.Calls("squeue").size() > 3; });
  EXPECT_THAT(fakes_.Calls("sbatch"), IsEmpty());
  EXPECT_THAT(
      fakes_.Calls("squeue").front(),
      "squeue|--noheader|--name=lockstep-x|--states=PENDING,CONFIGURING,RUNNING,SUSPENDED|--format=%i|%T|%M|%N");
}

TEST_F(SlurmDriverTest, AMachineThatHasComeIsNotOnItsWay) {
  fakes_.Write("queue", "12|RUNNING|0:10|n2\n");
  Start();
  driver_->Want(one_);
  EXPECT_THAT(Texts(1), ElementsAre("asked Slurm for a machine: job 17"));
}

// Slurm suspends it, or its machine was lost and its job runs on, or it never finds the coordinator.
TEST_F(SlurmDriverTest, WhatCameOrNeverWillIsNotOnItsWay) {
  fakes_.Write("queue", "11|SUSPENDED|0:09|n2\n12|RUNNING|0:10|lost\n13|RUNNING|5:01|n3\n14|SUSPENDED|1-00:00:00|n4\n");
  Start();
  driver_->Want({.machines = 1, .incident = 3, .here = {"n1", "n2"}, .banned = {"lost"}});
  EXPECT_THAT(Texts(1), ElementsAre("asked Slurm for a machine: job 17"));
}

TEST_F(SlurmDriverTest, AMachineIsGivenItsTimeToCome) {
  for (const char* queue : {"12|RUNNING|4:59|n3\n", "12|CONFIGURING|0:00|n3\n"}) {
    fakes_.Write("queue", queue);
    Start();
    driver_->Want(one_);
    const size_t looked = fakes_.Calls("squeue").size();
    Until([&] { return fakes_.Calls("squeue").size() > looked + 3; });
    EXPECT_THAT(fakes_.Calls("sbatch"), IsEmpty()) << queue;
  }
}

// Its job may have begun on a machine of ours.
TEST_F(SlurmDriverTest, CancelsNothingThatHasBegun) {
  fakes_.Write("queue", "11|SUSPENDED|0:09|n2\n12|RUNNING|0:10|n3\n17|CONFIGURING|0:00|n4\n");
  fakes_.Add("scancel", "sed -i /$1/d $folder/queue");
  Start();
  driver_->Want({.drains = {{"n4", "why", 2}}});
  EXPECT_THAT(Texts(2), testing::Contains("job 17 of Slurm is not needed any more: cancelled"));
  EXPECT_THAT(fakes_.Calls("scancel"), ElementsAre("scancel|17"));
}

TEST_F(SlurmDriverTest, CancelsNothingThatHasBegunWhenTheJobEnds) {
  fakes_.Write("queue", "11|SUSPENDED|0:09|n2\n12|RUNNING|0:10|n3\n18|PENDING|0:00|\n");
  Start();
  driver_->Want({.machines = 2, .incident = 3, .here = {"n1", "n2"}});
  Until([&] { return fakes_.Calls("squeue").size() > 1; });
  driver_->End();
  EXPECT_THAT(fakes_.Calls("scancel"), ElementsAre("scancel|18"));
}

TEST_F(SlurmDriverTest, CancelsWhatIsNotNeededAnyMore) {
  Start();
  driver_->Want(one_);
  Texts(1);
  driver_->Want({});
  EXPECT_THAT(Texts(1), ElementsAre("job 17 of Slurm is not needed any more: cancelled"));
  EXPECT_THAT(fakes_.Calls("scancel"), ElementsAre("scancel|17"));
}

TEST_F(SlurmDriverTest, LeavesAloneWhatIsAboutToJoin) {
  Start();
  driver_->Want(one_);
  Texts(1);
  fakes_.Write("queue", "17|RUNNING|0:10|n3\n");
  const size_t looked = fakes_.Calls("squeue").size();  // before it may look for the last time
  driver_->Want({});
  Until([&] { return fakes_.Calls("squeue").size() > looked; });
  driver_->End();
  EXPECT_THAT(fakes_.Calls("scancel"), IsEmpty());
}

TEST_F(SlurmDriverTest, AsksAgainLaterForOneThatNeverCame) {
  fakes_.Add("sbatch", "cat >/dev/null; echo 17");  // it ends at once
  Start({.ask_again = Seconds{0.2}});
  driver_->Want(one_);
  EXPECT_THAT(Texts(2), SizeIs(2));
}

TEST_F(SlurmDriverTest, CancelsWhatIsOnItsWayWhenTheJobEnds) {
  Start();
  driver_->Want(one_);
  Texts(1);
  driver_->End();
  EXPECT_THAT(fakes_.Calls("scancel"), ElementsAre("scancel|17"));
}

// Slurm has the request, and is about to say so.
TEST_F(SlurmDriverTest, CancelsWhatWasBeingAskedForWhenTheJobEnds) {
  fakes_.Add("sbatch", "cat >/dev/null; echo '17|PENDING|0:00|' >>$folder/queue; sleep 1000");
  Start();
  driver_->Want(one_);
  Until([&] { return !fakes_.Text("queue").empty(); });
  driver_->End();
  EXPECT_THAT(fakes_.Calls("scancel"), ElementsAre("scancel|17"));
}

// 128 KiB are the most that Linux takes as one argument.
TEST_F(SlurmDriverTest, AsksInAJobOfManyNodes) {
  fakes_.Add("sinfo", "seq -f gpu-node-%.0f 100000 109999");
  Start();
  Wanted wanted{.machines = 1, .incident = 3};
  for (int i = 0; i < 9999; ++i) wanted.here.push_back(fmt::format("gpu-node-{}", 100000 + i));
  driver_->Want(wanted);
  EXPECT_THAT(Texts(1), ElementsAre("asked Slurm for a machine: job 17"));
  EXPECT_THAT(fakes_.Calls("sbatch").front(), HasSubstr("|--exclude=gpu-node-[100000-109998]|"));
}

TEST_F(SlurmDriverTest, TheUsersScriptIsToldWhereTheCoordinatorIs) {
  Start({.coordinator = "lead:29400", .script = "mine.sbatch"});
  driver_->Want(one_);
  Texts(1);
  EXPECT_THAT(fakes_.Calls("sbatch"), ElementsAre("sbatch|--parsable|--nodes=1|--no-requeue|--job-name=lockstep-x|"
                                                  "--exclude=n[1-2]|mine.sbatch|lead:29400"));
}

TEST_F(SlurmDriverTest, DrainsWithTheReason) {
  Start();
  driver_->Want({.drains = {{"n3", "lockstep: incident 2: Xid 79", 2}}});
  Until([&] { return driver_->counts().drained == 1; });
  const std::vector<Outcome> outcomes = driver_->TakeOutcomes();
  ASSERT_THAT(outcomes, SizeIs(1));
  EXPECT_EQ(outcomes[0].incident, 2);
  EXPECT_EQ(outcomes[0].drained, "n3");
  EXPECT_EQ(outcomes[0].text, "Slurm drains node n3: no other job gets it");
  EXPECT_THAT(fakes_.Calls("scontrol"),
              ElementsAre("scontrol|update|NodeName=n3|State=DRAIN|Reason=lockstep: incident 2: Xid 79"));
}

TEST_F(SlurmDriverTest, ARefusalIsALine) {
  fakes_.Add("scontrol", "echo 'slurm_update error: Invalid user id' >&2; exit 1");
  Start();
  driver_->Want({.drains = {{"n3", "why", 2}, {"ALL", "why", 2}}});
  EXPECT_THAT(Texts(2), ElementsAre("Slurm does not drain node n3: scontrol: slurm_update error: Invalid user id",
                                    "Slurm does not drain node ALL: that is not the name of one host"));
  EXPECT_EQ(driver_->counts().refused, 2);
  EXPECT_THAT(fakes_.Calls("scontrol"), SizeIs(1)) << "it is not said again";
}

TEST_F(SlurmDriverTest, ARefusedRequestIsSaidOnceAndCounted) {
  fakes_.Add("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1");
  Start({.ask_again = Seconds{0.05}});
  driver_->Want(one_);
  EXPECT_THAT(Texts(1), ElementsAre("Slurm gives no machine: sbatch: error: invalid partition"));
  Until([&] { return driver_->counts().refused > 2; });
  EXPECT_THAT(driver_->TakeOutcomes(), IsEmpty());
}

TEST_F(SlurmDriverTest, GarbageAsksForNothing) {
  fakes_.Add("squeue", "echo 'what?'");
  Start();
  driver_->Want(one_);
  EXPECT_THAT(Texts(1).front(), HasSubstr("squeue: expected JOB|STATE|TIME|HOST, found \"what?\""));
  Until([&] { return driver_->counts().refused > 2; });
  EXPECT_THAT(fakes_.Calls("sbatch"), IsEmpty());
  fakes_.Add("squeue", "cat $folder/queue");
  EXPECT_THAT(Texts(1), ElementsAre("asked Slurm for a machine: job 17")) << "when it has come to its senses";
}

TEST_F(SlurmDriverTest, ACommandThatHangsHoldsUpNobody) {
  for (const char* program : {"scontrol", "squeue", "sbatch", "sinfo", "scancel"}) fakes_.Add(program, "sleep 1000");
  Start({.at_most = Seconds{0.2}});
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) {
    driver_->Want({.machines = 1 + i % 2, .incident = 3});
    driver_->TakeOutcomes();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
  EXPECT_THAT(Texts(1).front(), HasSubstr("squeue has not answered within 0.2 s"));
}

TEST_F(SlurmDriverTest, EndsWhileACommandHangs) {
  fakes_.Add("squeue", "sleep 1000");
  Start();
  driver_->Want(one_);
  Until([&] { return !fakes_.Calls("squeue").empty(); });
  const auto begun = std::chrono::steady_clock::now();
  driver_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(2));
}

TEST_F(SlurmDriverTest, BeginsTheJobAnew) {
  fakes_.Add("helper", "");
  Start({.job = "9", .begin_now = {"helper", "begin-now"}});
  EXPECT_EQ(Message(driver_->Requeue()), "");
  EXPECT_THAT(fakes_.Calls("scontrol"), ElementsAre("scontrol|--oneliner|show|job|9", "scontrol|requeue|9"));
  Until([&] { return fakes_.Calls("helper") == std::vector<std::string>{"helper|begin-now|9"}; });
}

TEST_F(SlurmDriverTest, BeginsNowWhatHasEnded) {
  fakes_.Add("scontrol",
             "test -e $folder/ended && echo 'JobId=9 JobState=PENDING' || echo 'JobId=9 JobState=COMPLETING'; touch "
             "$folder/ended");
  EXPECT_EQ(BeginNowMain("9"), 0);
  EXPECT_THAT(fakes_.Calls("scontrol"), ElementsAre("scontrol|--oneliner|show|job|9", "scontrol|--oneliner|show|job|9",
                                                    "scontrol|update|JobId=9|StartTime=now+5"));
  fakes_.Add("scontrol", "echo 'JobId=9 JobState=RUNNING'");
  EXPECT_EQ(BeginNowMain("9", Seconds{0.3}), 1);
}

TEST_F(SlurmDriverTest, DoesNotBeginAnewWhatMayNotBe) {
  fakes_.Add("scontrol", "echo 'JobId=9 Requeue=0 BatchFlag=1'");
  Start({.job = "9"});
  EXPECT_EQ(Message(driver_->Requeue()), "job 9 is no batch job that may begin anew (sbatch --requeue)");
  EXPECT_THAT(fakes_.Calls("scontrol"), SizeIs(1));
  Start();
  EXPECT_EQ(Message(driver_->Requeue()), "the coordinator runs in no job of Slurm's");
}

TEST_F(SlurmDriverTest, FoldersOnPathMayHaveSpaces) {
  for (const char* program : {"scontrol", "sbatch", "squeue", "scancel", "sinfo"}) fakes_.Add(program, "");
  fakes_.Rename("a folder");
  EXPECT_EQ(Message(CheckSlurm()), "");
}

TEST_F(SlurmDriverTest, IsNotStartedWhereThereIsNoSlurm) {
  setenv("PATH", "/nowhere", 1);
  EXPECT_EQ(Message(StartSlurm({}).status()),
            "--cluster slurm: there is no scontrol on PATH; install Slurm's commands, or leave the option out");
}

// tests/e2e/test_slurm.py has started one, and looks at what became of that node.
TEST(RealSlurm, Drains) {
  const char* node = std::getenv("LOCKSTEP_TEST_SLURM_NODE");
  if (node == nullptr) GTEST_SKIP() << "LOCKSTEP_TEST_SLURM_NODE names a node of a Slurm to be drained";
  auto driver = StartSlurm({.request_name = "lockstep-test"});
  ASSERT_TRUE(driver.ok()) << driver.status();
  (*driver)->Want({.drains = {{node, "lockstep: incident 3: gpu_xid of gpu3: Xid 79, \"off the bus\"", 3}}});
  for (int i = 0; i < 4000 && (*driver)->counts().drained + (*driver)->counts().refused == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::vector<Outcome> outcomes = (*driver)->TakeOutcomes();
  ASSERT_THAT(outcomes, SizeIs(1));
  EXPECT_EQ(outcomes[0].text, fmt::format("Slurm drains node {}: no other job gets it", node));
}

}  // namespace
}  // namespace lockstep::schedule
