#include "lockstep/agent/launch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace lockstep::agent {
namespace {

RunSpec Spec() {
  RunSpec spec;
  spec.job = "job";
  spec.run_dir = "/run/x";
  spec.python = "/usr/bin/python3";
  spec.command = {"train.py", "--shard", "${local_rank}"};
  spec.ranks = 4;
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

TEST(WorkerCommand, FillsInTheLocalRank) {
  EXPECT_THAT(WorkerCommand(Spec(), 2), testing::ElementsAre("/usr/bin/python3", "-u", "train.py", "--shard", "2"));
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

TEST(StartProcess, SaysWhatExecSaid) {
  const auto pid = StartProcess({"/no/such/python"}, {}, "/", 1, 2, -1);
  EXPECT_EQ(Message(pid.status()), "starting /no/such/python in /: No such file or directory");
}

}  // namespace
}  // namespace lockstep::agent
