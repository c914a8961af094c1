#include "lockstep/agent/launch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

RunSpec Spec() {
  RunSpec spec;
  spec.job = "job";
  spec.run_dir = "/run/x";
  spec.python = "/usr/bin/python3";
  spec.command = {"train.py", "--shard", "${local_rank}"};
  spec.ranks = spec.place.world_size = 4;
  spec.package_dir = "/opt/lockstep/python";
  return spec;
}

TEST(WorkerEnvironment, IsTorchrunsContract) {
  unsetenv("OMP_NUM_THREADS");
  unsetenv("PYTHONPATH");
  const Environment environment = WorkerEnvironment(Spec(), {.epoch = 3, .restart_count = 2, .store_port = 1234}, 1);
  const Environment expected = {{"RANK", "1"},
                                {"LOCAL_RANK", "1"},
                                {"ROLE_RANK", "1"},
                                {"GROUP_RANK", "0"},
                                {"ROLE_NAME", "default"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"ROLE_WORLD_SIZE", "4"},
                                {"GROUP_WORLD_SIZE", "1"},
                                {"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", "1234"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"},
                                {"TORCHELASTIC_MAX_RESTARTS", "1000"},
                                {"TORCHELASTIC_RUN_ID", "job"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"OMP_NUM_THREADS", "1"},
                                {"LOCKSTEP_EPOCH", "3"},
                                {"PYTHONPATH", "/opt/lockstep/python/lockstep/_site:/opt/lockstep/python"}};
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(environment.contains(name)) << name;
    EXPECT_EQ(environment.at(name), value) << name;
  }
  EXPECT_TRUE(environment.contains("TORCHELASTIC_ERROR_FILE"));
}

TEST(WorkerEnvironment, OfTheSecondNode) {
  RunSpec spec = Spec();
  spec.place = {.node = 1, .first_rank = 6, .world_size = 10, .nodes = 2};
  const Environment environment = WorkerEnvironment(spec, {.store_host = "10.0.0.1", .store_port = 1234}, 3);
  const Environment expected = {
      {"RANK", "9"},         {"LOCAL_RANK", "3"},       {"ROLE_RANK", "9"},        {"GROUP_RANK", "1"},
      {"WORLD_SIZE", "10"},  {"LOCAL_WORLD_SIZE", "4"}, {"GROUP_WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"},
      {"LOCKSTEP_RANK", "9"}};
  for (const auto& [name, value] : expected) EXPECT_EQ(environment.at(name), value) << name;
}

TEST(WorkerEnvironment, NcclsVariableIsThatOfTheVersionOfTorch) {
  const auto has = [](const char* torch, const char* name) {
    return WorkerEnvironment(Spec(), {.torch = torch}, 0).contains(name);
  };
  constexpr const char* kOld = "NCCL_ASYNC_ERROR_HANDLING";
  constexpr const char* kNew = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  for (const char* torch : {"1.13.1", "2.0.1+cu118", "2.1.0"})
    EXPECT_TRUE(has(torch, kOld) && !has(torch, kNew)) << torch;
  for (const char* torch : {"2.2.0", "2.10.1"}) EXPECT_TRUE(!has(torch, kOld) && has(torch, kNew)) << torch;
  EXPECT_TRUE(has("", kOld) && has("", kNew));
}

TEST(WorkerEnvironment, FollowsTorchrunsOptions) {
  RunSpec spec = Spec();
  spec.torchrun.role = "trainer";
  spec.torchrun.run_id = "job7";
  spec.torchrun.log_dir = "/logs/job7_x";
  spec.torchrun.virtual_local_rank = true;
  setenv("CUDA_VISIBLE_DEVICES", "4,6", 1);
  Environment environment = WorkerEnvironment(spec, {.epoch = 3, .restart_count = 2, .store_host = "localhost"}, 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(environment["ROLE_NAME"], "trainer");
  EXPECT_EQ(environment["TORCHELASTIC_RUN_ID"], "job7");
  spec.torchrun.run_id.clear();
  spec.place.nodes = 2;
  EXPECT_EQ(WorkerEnvironment(spec, {.epoch = 3}, 1)["TORCHELASTIC_RUN_ID"], "none") << "the same on both";
  EXPECT_EQ(environment["MASTER_ADDR"], "localhost");
  EXPECT_EQ(environment["TORCHELASTIC_ERROR_FILE"], "/logs/job7_x/attempt_2/1/error.json");
  EXPECT_EQ(environment["LOCAL_RANK"], "0");
  EXPECT_EQ(environment["RANK"], "1");
  EXPECT_EQ(environment["CUDA_VISIBLE_DEVICES"], "6");
}

TEST(WorkerEnvironment, AsksForNoLibuvWhereRank0MakesTheStore) {
  unsetenv("USE_LIBUV");
  EXPECT_FALSE(WorkerEnvironment(Spec(), {.epoch = 1}, 0).contains("USE_LIBUV"));
  EXPECT_EQ(WorkerEnvironment(Spec(), {.epoch = 1, .agent_store = false}, 0).at("USE_LIBUV"), "0");
  setenv("USE_LIBUV", "1", 1);
  EXPECT_FALSE(WorkerEnvironment(Spec(), {.epoch = 1, .agent_store = false}, 0).contains("USE_LIBUV"));
  unsetenv("USE_LIBUV");
}

TEST(WorkerEnvironment, LeavesTheUsersThreadCountAlone) {
  setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_FALSE(WorkerEnvironment(Spec(), {}, 0).contains("OMP_NUM_THREADS"));
  unsetenv("OMP_NUM_THREADS");
}

// Our own processes begin in other directories than the workers.
TEST(PythonEnvironment, HasNoRelativeEntries) {
  RunSpec spec = Spec();
  spec.cwd = "/jobs/a";
  const auto path = [&](const char* inherited) {
    setenv("PYTHONPATH", inherited, 1);
    const std::string found = PythonEnvironment(spec, false)["PYTHONPATH"];
    unsetenv("PYTHONPATH");
    return found;
  };
  EXPECT_EQ(path(""), "/opt/lockstep/python");
  EXPECT_EQ(path("src:/opt/lib"), "/opt/lockstep/python:/jobs/a/src:/opt/lib");
  EXPECT_EQ(path("./../b/"), "/opt/lockstep/python:/jobs/b/");
  EXPECT_EQ(path("."), "/opt/lockstep/python:/jobs/a/");
  for (const char* inherited : {":/x", "/x::/y", "./..:"})
    EXPECT_NE((path(inherited) + ":").find(":/jobs/a/:"), std::string::npos) << inherited << ": an empty one is ours";
}

TEST(WorkerEnvironment, TakesDrillsOnlyWhereTheyAreAllowed) {
  RunSpec spec = Spec();
  EXPECT_FALSE(WorkerEnvironment(spec, {}, 1).contains("LOCKSTEP_DRILL_FILE"));
  spec.allow_drill = true;
  EXPECT_EQ(WorkerEnvironment(spec, {.epoch = 3}, 1).at("LOCKSTEP_DRILL_FILE"), "/run/x/epoch_3/rank_1.drill.json");
}

// NCCL 2.27.3 takes no path.
TEST(WorkerEnvironment, TellsNcclThePluginByItsNameAndTheLoaderItsFolder) {
  unsetenv("LD_LIBRARY_PATH");
  RunSpec spec = Spec();
  EXPECT_FALSE(WorkerEnvironment(spec, {}, 0).contains("LD_LIBRARY_PATH"));
  spec.nccl_lib = "/opt/lib/lockstep/nccl/liblockstep-nccl-profiler.so";
  EXPECT_EQ(WorkerEnvironment(spec, {}, 0)["NCCL_PROFILER_PLUGIN"], "liblockstep-nccl-profiler.so");
  const auto searched = [&](const EpochPlan& plan) { return WorkerEnvironment(spec, plan, 0)["LD_LIBRARY_PATH"]; };
  EXPECT_EQ(searched({}), "/opt/lib/lockstep/nccl");
  setenv("LD_LIBRARY_PATH", "", 1);
  EXPECT_EQ(searched({}), "/opt/lib/lockstep/nccl") << "not the working directory, too";
  setenv("LD_LIBRARY_PATH", "/theirs:/cuda", 1);
  EXPECT_EQ(searched({}), "/opt/lib/lockstep/nccl:/theirs:/cuda");
  EXPECT_EQ(searched({.environment = {{"LD_LIBRARY_PATH", "/updated"}}}), "/opt/lib/lockstep/nccl:/updated");
  unsetenv("LD_LIBRARY_PATH");
}

TEST(WorkerCommand, FillsInTheLocalRank) {
  EXPECT_THAT(WorkerCommand(Spec(), 2), testing::ElementsAre("/usr/bin/python3", "-u", "train.py", "--shard", "2"));
}

// What string.Template(word).safe_substitute(local_rank="2") makes of each.
TEST(WorkerCommand, FillsInTheLocalRankAsTorchrun) {
  RunSpec spec = Spec();
  spec.command = {"t.py",
                  "$local_rank",
                  "a$local_rank.b",
                  "x${local_rank}$local_rank",
                  "$local_rank_x",
                  "$local_rank1",
                  "$LOCAL_RANK",
                  "cost$$5",
                  "$$local_rank",
                  "$$$local_rank",
                  "$$",
                  "$",
                  "${local_rank",
                  "$other",
                  "${other}$$"};
  EXPECT_THAT(ScriptCommand(spec, 2),
              testing::ElementsAre("t.py", "2", "a2.b", "x22", "$local_rank_x", "$local_rank1", "$LOCAL_RANK", "cost$5",
                                   "$local_rank", "$2", "$", "$", "${local_rank", "$other", "${other}$"));
}

TEST(WorkerCommand, MayBeAProgram) {
  RunSpec spec = Spec();
  spec.torchrun.no_python = true;
  EXPECT_THAT(WorkerCommand(spec, 2), testing::ElementsAre("train.py", "--shard", "2"));
}

// A directory with the folder `src`, as a version of the code in /old.
class Version : public testing::Test {
 protected:
  Version() { plan_.code = folder_.path(); }
  const TestFolder folder_;
  EpochPlan plan_{.version = 2, .code_root = "/old", .environment = {{"LR", "0.1"}, {"OMP_NUM_THREADS", "3"}}};
};

TEST_F(Version, IsFoundWhereItsCopyIs) {
  mkdir((plan_.code + "/src").c_str(), 0700);
  setenv("PYTHONPATH", "src:/older:/old/venv", 1);
  RunSpec spec = Spec();
  spec.package_dir = spec.cwd = "/old";
  const Environment environment = WorkerEnvironment(spec, plan_, 0);
  unsetenv("PYTHONPATH");
  EXPECT_EQ(environment.at("PYTHONPATH"), "/old/lockstep/_site:/old:" + plan_.code + "/src:/older:/old/venv");
  EXPECT_EQ(environment.at("LOCKSTEP_CODE_VERSION"), "2");
  EXPECT_EQ(environment.at("LR"), "0.1");
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "3") << "ours is a default only";
  spec.command = {"jobs/train.py", "--shard", "1"};
  EXPECT_THAT(WorkerCommand(spec, 0, plan_.code),
              testing::ElementsAre("/usr/bin/python3", "-u", plan_.code + "/train.py", "--shard", "1"));
  spec.module = true;
  spec.command = {"jobs.train"};
  EXPECT_THAT(WorkerCommand(spec, 0, plan_.code),
              testing::ElementsAre("/usr/bin/python3", "-u", "-m", "lockstep._version", plan_.code, "jobs.train"));
}

TEST(Variables, OfLockstepAreItsOwn) {
  for (const char* name : {"RANK", "MASTER_PORT", "PYTHONPATH", "LOCKSTEP_RUN", "LD_PRELOAD"})
    EXPECT_EQ(WhyNotSet(name), "Lockstep sets it for every worker") << name;
  for (const char* name : {"LR", "OMP_NUM_THREADS", "NCCL_DEBUG", "PYTHONHASHSEED"}) EXPECT_EQ(WhyNotSet(name), "");
  for (const char* name : {"", "A B", "1A"}) EXPECT_EQ(WhyNotSet(name), "it is no name of a variable");
}

std::string ReadAll(int fd) {
  std::string text;
  char chunk[512];
  for (ssize_t got = 0; (got = read(fd, chunk, sizeof(chunk))) > 0;) text.append(chunk, static_cast<size_t>(got));
  return text;
}

TEST(StartProcess, GivesEnvironmentFolderPidAndOutput) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  const auto pid =
      StartProcess({"/bin/sh", "-c", "echo $A $$ $LOCKSTEP_WORKER_PID; pwd"}, {{"A", "b"}}, "/usr", out[1], out[1], -1);
  ASSERT_TRUE(pid.ok()) << pid.status();
  close(out[1]);
  EXPECT_EQ(ReadAll(out[0]), fmt::format("b {0} {0}\n/usr\n", *pid));
  close(out[0]);
  waitpid(*pid, nullptr, 0);
}

TEST(StartProcess, EndsWithWhoHasStartedIt) {
  pid_t pid = 0;
  std::thread([&] { pid = StartProcess({"/bin/sleep", "20"}, {}, "/", 1, 2, -1, false).value(); }).join();
  int status = 0;
  ASSERT_EQ(pid, waitpid(pid, &status, 0));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST(StartProcess, SaysWhatExecSaid) {
  const auto pid = StartProcess({"/no/such/python"}, {}, "/", 1, 2, -1);
  EXPECT_EQ(Message(pid.status()), "starting /no/such/python in /: No such file or directory");
}

}  // namespace
}  // namespace lockstep::agent
