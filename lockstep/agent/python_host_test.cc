// Helpers that are there and answer nothing, as stopped processes do.
#include "lockstep/agent/python_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "lockstep/agent/proc.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

using testing::HasSubstr;

// Has imported torch, it says, and nothing more.
constexpr const char* kSilentZygote = R"(#!/bin/bash
printf '{"event":"ready","ok":true,"torch":"2.0"}' >&$LOCKSTEP_STARTER_FD
exec sleep 1000
)";

// As that one; who opens the pipe beside it knows that it has said so.
constexpr const char* kToldZygote = R"(#!/bin/bash
printf '{"event":"ready","ok":true,"torch":"2.0"}' >&$LOCKSTEP_STARTER_FD
: >$0.said
exec sleep 1000
)";

// Says which folders its loader searches first.
constexpr const char* kSearchingZygote = R"(#!/bin/bash
printf '{"event":"ready","ok":true,"torch":"2.0","why":"%s"}' "$LD_LIBRARY_PATH" >&$LOCKSTEP_STARTER_FD
exec sleep 1000
)";

constexpr const char* kImportHangs = R"(#!/bin/bash
exec sleep 1000
)";

// Answers only once it was asked for the stores of two epochs.
constexpr const char* kSlowStoreHost = R"(#!/bin/bash
for epoch in 1 2; do dd bs=64K count=1 status=none <&$LOCKSTEP_STARTER_FD >/dev/null; done
for epoch in 1 2; do printf '{"event":"store","epoch":%d,"port":700%d}' $epoch $epoch >&$LOCKSTEP_STARTER_FD; done
)";

class Helpers : public testing::Test {
 protected:
  Helpers() {
    spec_.python = folder_ / "python";
    spec_.ranks = 1;
    spec_.node_name = "a";
    spec_.command = {"train.py"};
  }
  ~Helpers() override {
    host_.reset();
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }

  void Start(const char* python) {
    std::ofstream(spec_.python) << python;
    std::filesystem::permissions(spec_.python, std::filesystem::perms::owner_all);
    host_.emplace(
        spec_, clock_, poller_,
        PythonHost::Listener{.ready = [this] { poller_.Stop(); },
                             .store =
                                 [this](uint64_t epoch, int port) {
                                   said_ = fmt::format("store {} {}", epoch, port);
                                   poller_.Stop();
                                 },
                             .spawned = [](uint64_t, const std::vector<pid_t>&) { FAIL(); },
                             .spawn_failed = [](uint64_t, const std::string& error) { FAIL() << error; },
                             .unspawned = [this](uint64_t epoch) { said_ = fmt::format("unspawned {}", epoch); },
                             .note = [this](const std::string& text) { note_ = text; }});
    host_->Start();
  }
  // Until the host says something. False: it does not.
  bool Hear() {
    int seconds = 0;
    poller_.Run(Seconds{1}, [&] {
      if (++seconds == 20) poller_.Stop();
    });
    return seconds < 20;
  }
  void StartSilentZygote() {
    Start(kSilentZygote);
    ASSERT_TRUE(Hear());
    ASSERT_TRUE(host_->zygote_ok());
  }
  void Pass(Seconds seconds) {
    clock_.Advance(seconds);
    host_->Tick();
  }
  // By which signal our only child ended.
  static int EndOfZygote() {
    int status = 0;
    EXPECT_GT(waitpid(-1, &status, 0), 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

  const TestFolder folder_;
  std::string said_, note_;
  RunSpec spec_;
  FakeClock clock_;
  Poller poller_;
  std::optional<PythonHost> host_;
};

TEST_F(Helpers, AZygoteThatDoesNotAnswerIsKilledAndWorkersStartByExec) {
  StartSilentZygote();
  Pipe pipe = MakePipe().value();
  std::vector<Stdio> stdio(1);
  stdio[0] = {std::move(pipe.write), std::move(pipe.read)};
  Pass(Seconds{100});  // nothing is asked
  ASSERT_TRUE(host_->Spawn({.epoch = 1}, {0}, stdio));
  Pass(Seconds{14});
  EXPECT_TRUE(host_->spawning());
  Pass(Seconds{2});
  EXPECT_EQ("unspawned 1", said_);
  EXPECT_THAT(note_, HasSubstr("did not answer within 15 s and was killed"));
  EXPECT_FALSE(host_->spawning() || host_->zygote_ok());
  EXPECT_TRUE(host_->zygote_ends());
  EXPECT_EQ(SIGKILL, EndOfZygote());
}

TEST_F(Helpers, TheLoaderOfTheZygoteAndSoOfItsForksFindsNcclsPluginByItsName) {
  spec_.nccl_lib = "/opt/lib/lockstep/nccl/liblockstep-nccl-profiler.so";
  setenv("LD_LIBRARY_PATH", "/theirs", 1);
  Start(kSearchingZygote);
  unsetenv("LD_LIBRARY_PATH");
  ASSERT_TRUE(Hear());
  EXPECT_EQ("/opt/lib/lockstep/nccl:/theirs", host_->why());
}

TEST_F(Helpers, AnImportThatTakesLongIsToldAndGivenUpInTheEnd) {
  Start(kImportHangs);
  Pass(Seconds{59});
  EXPECT_EQ("", note_);
  Pass(Seconds{2});
  EXPECT_EQ("a: still importing torch after 60 s; without it after 600 s workers start by exec", note_);
  note_.clear();
  Pass(Seconds{538});
  EXPECT_EQ("", note_) << "it is said once";
  EXPECT_FALSE(host_->known());
  Pass(Seconds{2});
  EXPECT_TRUE(host_->known());
  EXPECT_FALSE(host_->zygote_ok());
  EXPECT_EQ("the zygote process had not imported torch within 600 s and was killed", host_->why());
  EXPECT_EQ(SIGKILL, EndOfZygote());
}

TEST_F(Helpers, WhatIsThereIsReadBeforeItIsTakenForLate) {
  const std::string said = spec_.python + ".said";
  ASSERT_EQ(0, mkfifo(said.c_str(), 0600));
  Start(kToldZygote);
  std::ifstream(said).get();  // blocks until it is opened there too
  Pass(Seconds{1000});
  EXPECT_TRUE(host_->zygote_ok());
  EXPECT_EQ("", note_);
}

TEST_F(Helpers, AStoreHostThatDoesNotAnswerLeavesTheStoreToRankZero) {
  StartSilentZygote();
  host_->AskStore(3, 0);
  Pass(Seconds{14});
  EXPECT_EQ("", said_);
  Pass(Seconds{2});
  EXPECT_EQ("store 3 0", said_);
  EXPECT_THAT(note_, HasSubstr("rank 0 hosts the rendezvous store: its host did not answer"));
}

TEST_F(Helpers, TheStoreOfAnEarlierEpochIsNotTakenForTheOneThatIsWaitedFor) {
  spec_.start_method = StartMethod::kExec;
  Start(kSlowStoreHost);
  ASSERT_TRUE(Hear());  // that it is ready
  for (const uint64_t epoch : {1, 2}) host_->AskStore(epoch, 0);
  ASSERT_TRUE(Hear());
  EXPECT_EQ("store 2 7002", said_);
}

TEST_F(Helpers, StoppedOnesEndWithTheirOwner) {
  StartSilentZygote();
  const std::vector<pid_t> zygote = Children(getpid());
  ASSERT_EQ(1u, zygote.size());
  kill(zygote[0], SIGSTOP);
  host_.reset();
  EXPECT_EQ(SIGKILL, EndOfZygote());
}

}  // namespace
}  // namespace lockstep::agent
