#include "lockstep/schedule/slurm.h"

#include <gmock/gmock.h>

namespace lockstep::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// As Slurm 22.05 prints it, with a comment that looks like fields.
constexpr char kJob[] =
    "JobId=17 JobName=train UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901758 Nice=0 Account=(null) "
    "QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:00:07 TimeLimit=1-00:00:00 TimeMin=N/A Partition=gpu AllocNode:Sid=login:1234 NodeList=n[1-2] "
    "BatchHost=n1 NumNodes=2 NumCPUs=64 NumTasks=2 CPUs/Task=32 ReqB:S:C:T=0:0:*:* MinCPUsNode=32 MinMemoryNode=500G "
    "MinTmpDiskNode=0 Features=rack1&v100 DelayBoot=00:00:00 OverSubscribe=NO Contiguous=0 Licenses=(null) "
    "Network=(null) Command=/home/u/a b.sbatch WorkDir=/home/u Comment=Partition=other TresPerNode=gres:gpu:8\n";

TEST(Slurm, ReadsAJob) {
  const auto job = ParseJob(kJob);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->partition, "gpu");
  EXPECT_EQ(job->account, "");
  EXPECT_EQ(job->time_limit, "1-00:00:00");
  EXPECT_EQ(job->constraint, "rack1&v100");
  EXPECT_EQ(job->cpus_per_node, 32);
  EXPECT_EQ(job->memory_per_node, "500G");
  EXPECT_EQ(job->gres, "gpu:8");
  EXPECT_TRUE(job->exclusive);
  EXPECT_TRUE(job->requeues);
  EXPECT_EQ(Message(ParseJob("slurm_load_jobs error").status()),
            "scontrol show job: no JobId in \"slurm_load_jobs error\"");
}

// As `sbatch --gpus` and `--gpus-per-task` leave them.
TEST(Slurm, SharesTheJobsGpusOutAmongItsNodes) {
  const auto gres_of = [](const std::string& fields) { return ParseJob("JobId=1 NumNodes=2 " + fields)->gres; };
  EXPECT_EQ(gres_of("TRES=cpu=64,mem=1000G,node=2,billing=64,gres/gpu=16 TresPerJob=gres:gpu:16"), "gpu:8");
  EXPECT_EQ(gres_of("ReqTRES=cpu=64,gres/gpu=16 AllocTRES=cpu=64,gres/gpu=16,gres/gpu:h100=16"), "gpu:h100:8");
  EXPECT_EQ(gres_of("TRES=cpu=64,gres/gpu=16,gres/nvme=2"), "gpu:8,nvme:1");
  EXPECT_EQ(gres_of("TRES=cpu=64,gres/gpu=16 TresPerNode=gres:gpu:4"), "gpu:4") << "what was said of a node goes first";
  EXPECT_EQ(gres_of("TRES=cpu=64,node=2"), "");
}

// As --mem=0 and --mem-per-gpu=500 leave it.
TEST(Slurm, SharesTheJobsMemoryOutAmongItsNodes) {
  const auto memory_of = [](const std::string& fields) {
    const JobShape shape = *ParseJob("JobId=1 NumNodes=2 " + fields);
    return shape.memory_per_node + "|" + shape.memory_per_cpu;
  };
  EXPECT_EQ(memory_of("TRES=cpu=2,mem=2000M,node=2 MinMemoryNode=0"), "1000M|");
  EXPECT_EQ(memory_of("TRES=cpu=2,mem=1000M,node=2,gres/gpu=2 MinMemoryNode=100M MemPerTres=gres:gpu:500"), "500M|");
  EXPECT_EQ(memory_of("ReqTRES=cpu=2,mem=1M AllocTRES=cpu=2,mem=1.50T MinMemoryNode=0"), "786432M|");
  EXPECT_EQ(memory_of("TRES=cpu=4,mem=400M,node=2 MinMemoryCPU=100M"), "200M|");
  EXPECT_EQ(memory_of("TRES=cpu=3,mem=301M,node=2 MinMemoryCPU=100M"), "|100M") << "not the same on each";
  EXPECT_EQ(memory_of("TRES=cpu=2,mem=1999M,node=2 MinMemoryNode=0"), "0|") << "all that a node has";
  EXPECT_EQ(memory_of("TRES=cpu=2,node=2 MinMemoryNode=300M"), "300M|") << "Slurm does not share memory out";
  EXPECT_EQ(memory_of("TRES=mem=,mem=2Q"), "|");
}

TEST(Slurm, FoldsHosts) {
  EXPECT_EQ(Folded({}), "");
  EXPECT_EQ(Folded({"n1"}), "n1");
  EXPECT_EQ(Folded({"n10", "n9", "n8", "n12", "n11", "login", "n08", "n09"}), "login,n[8-9],n[08-12]");
  EXPECT_EQ(Folded({"r1n01", "r1n03", "r2n01", "7", "n1.site"}), "7,n1.site,r1n[01,03],r2n01") << "no number behind";
  EXPECT_EQ(Folded({"n12345678901", "n12345678902"}), "n12[345678901-345678902]");
  EXPECT_EQ(Folded({"n099", "n100", "n099"}), "n[099-100]");
}

TEST(Slurm, SaysWhereTheGpusOfANodeAreNotKnown) {
  const auto why = [](const std::string& fields) { return ParseJob("JobId=1 NumNodes=2 " + fields)->gres_unclear; };
  EXPECT_EQ(why("TRES=cpu=64,gres/gpu=15"), "TRES=cpu=64,gres/gpu=15 on 2 nodes does not tell what each has");
  EXPECT_THAT(why("TRES=cpu=64 TresPerTask=gres:gpu:1"), HasSubstr("TresPerTask=gres:gpu:1"));
  EXPECT_EQ(why("TRES=cpu=64,gres/gpu=16"), "");
  EXPECT_EQ(why("TRES=cpu=64"), "");
}

TEST(Slurm, RequeuesBatchJobsOnlyThatMayBe) {
  EXPECT_FALSE(ParseJob("JobId=1 Requeue=0 BatchFlag=1")->requeues);
  EXPECT_FALSE(ParseJob("JobId=1 Requeue=1 BatchFlag=0")->requeues) << "of srun or salloc";
}

TEST(Slurm, ReadsTheQueue) {
  const auto queue = ParseQueue("17|PENDING|0:00|\n18|RUNNING|1-02:03:04|n3\n19|SUSPENDED|INVALID|n4\n");
  ASSERT_TRUE(queue.ok()) << queue.status();
  ASSERT_EQ(queue->size(), 3u);
  EXPECT_FALSE((*queue)[0].HasBegun());
  EXPECT_EQ((*queue)[0].ran.value, 0);
  EXPECT_EQ((*queue)[0].host, "");
  EXPECT_TRUE((*queue)[1].HasBegun());
  EXPECT_EQ((*queue)[1].ran.value, 93784) << "86,400 + 2 * 3600 + 3 * 60 + 4";
  EXPECT_EQ((*queue)[1].host, "n3");
  EXPECT_TRUE((*queue)[2].HasBegun());
  EXPECT_EQ((*queue)[2].ran.value, 0) << "the clocks differ";
  EXPECT_TRUE(ParseQueue("")->empty());
  EXPECT_EQ(Message(ParseQueue("slurm_load_jobs: bad\n").status()),
            "squeue: expected JOB|STATE|TIME|HOST, found \"slurm_load_jobs: bad\"");
}

TEST(Slurm, ReadsTheNumberOfAJob) {
  EXPECT_EQ(*ParseSubmitted("17\n"), "17");
  EXPECT_EQ(*ParseSubmitted("17;cluster\n"), "17");
  EXPECT_FALSE(ParseSubmitted("Submitted batch job 17\n").ok());
  EXPECT_FALSE(ParseSubmitted("").ok());
}

TEST(Slurm, DrainsOneHostAndNeverMore) {
  EXPECT_TRUE(IsHostName("gpu-node_3.site"));
  for (const char* name : {"", "ALL", "all", "n[1-9]", "n1,n2", "n1 n2", "n1\nn2", "n*"})
    EXPECT_FALSE(IsHostName(name)) << name;
  EXPECT_THAT(DrainHost("n3", "lockstep: incident 3: \"Xid 79\"\nGPU gone"),
              ElementsAre("scontrol", "update", "NodeName=n3", "State=DRAIN",
                          "Reason=lockstep: incident 3: 'Xid 79'?GPU gone"));
  EXPECT_EQ(ReasonText(std::string(1000, 'x')).size(), 200u);
}

TEST(Slurm, NamesRequestsAfterTheRun) {
  EXPECT_EQ(RequestName("gpt,2 x", "0123456789abcdef0123"), "lockstep-gpt_2_x-0123456789ab");
}

TEST(Slurm, AsksForOneMoreOfTheSameKind) {
  const Submission like{"name", {"n1", "n2"}, *ParseJob(kJob), "/dev/stdin", {"/opt/lockstep", "--ranks", "a b"}};
  EXPECT_THAT(Submit(like),
              ElementsAre("sbatch", "--parsable", "--nodes=1", "--no-requeue", "--job-name=name", "--exclude=n[1-2]",
                          "--ntasks=1", "--partition=gpu", "--qos=normal", "--time=1-00:00:00",
                          "--constraint=rack1&v100", "--cpus-per-task=32", "--mem=500G", "--gres=gpu:8", "--exclusive",
                          "/dev/stdin", "/opt/lockstep", "--ranks", "a b"));
  EXPECT_THAT(
      Submit({"name", {}, {}, "mine.sbatch", {"lead:29400"}}),
      ElementsAre("sbatch", "--parsable", "--nodes=1", "--no-requeue", "--job-name=name", "mine.sbatch", "lead:29400"));
}

TEST(Slurm, TheScriptKeepsItsWords) { EXPECT_THAT(kStandbyScript, HasSubstr("\"$@\"")); }

}  // namespace
}  // namespace lockstep::schedule
