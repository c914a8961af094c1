#include "lockstep/agent/helpers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "lockstep/agent/proc.h"
#include "lockstep/agent/test_child.h"

namespace lockstep::agent {
namespace {

using trace::ProcessRole;

struct Case {
  const char* name;
  const char* command;
  std::vector<std::string> python;
  ProcessRole role;
};

const std::string kStart = "/usr/lib/python3.11/multiprocessing/process.py:314 in _bootstrap";
const Case kCases[] = {
    {"pt_data_worker", "python train.py", {}, ProcessRole::kDataWorker},
    {"python3",
     "python train.py",
     {"/usr/lib/python3.11/multiprocessing/queues.py:113 in get",
      "/usr/lib/python3/dist-packages/torch/utils/data/_utils/worker.py:227 in _worker_loop", kStart,
      "/home/me/checkpoint_job.py:7 in main"},
     ProcessRole::kDataWorker},
    {"python3",
     "python train.py --checkpoint-dir /data",
     {"/x/site-packages/torch/distributed/checkpoint/filesystem.py:300 in _write_files", kStart},
     ProcessRole::kCheckpointWriter},
    {"python3",
     "python train.py --checkpoint-dir /data",
     {"/x/megatron/core/dist_checkpointing/strategies/filesystem_async.py:90 in write_preloaded_data", kStart},
     ProcessRole::kCheckpointWriter},
    {"ckpt", "/opt/bin/checkpoint-writer --rank 3", {}, ProcessRole::kCheckpointWriter},
    // What its parent does says nothing about a forked child.
    {"python3",
     "python train.py --checkpoint-dir /data",
     {"/home/me/own.py:3 in work", kStart, "/home/me/checkpoint.py:7 in save"},
     ProcessRole::kOther},
    {"python3", "python -c from multiprocessing.resource_tracker import main;main(5)", {}, ProcessRole::kOther},
    {"nvidia-smi", "nvidia-smi", {}, ProcessRole::kOther},
};

TEST(Helpers, AreKnownByWhatTheyDo) {
  for (const Case& one : kCases) EXPECT_EQ(RoleOf(one.name, one.command, one.python), one.role) << one.command;
}

TEST(Helpers, AreFoundBelowTheirWorkers) {
  const TestChild worker({"/bin/sh", "-c", "sleep 60 & sleep 60 & wait"});
  const pid_t workers[] = {getpid() + 1'000'000, worker.pid()};  // of which the first is none
  size_t beyond = 0;
  std::vector<Helper> helpers;
  // The shell's children are shells at first.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < limit) {
    beyond = 0;
    helpers = FindHelpers(workers, 1, beyond);
    if (beyond == 1 && helpers[0].name == "sleep") break;
  }
  for (const pid_t child : Descendants({worker.pid()})) kill(child, SIGKILL);
  EXPECT_EQ(beyond, 1U);
  ASSERT_EQ(helpers.size(), 1U);
  EXPECT_EQ(helpers[0].worker, 1U);
  EXPECT_EQ(helpers[0].name, "sleep");
  EXPECT_EQ(helpers[0].command, "sleep 60");
}

}  // namespace
}  // namespace lockstep::agent
