#include "lockstep/agent/output.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

class OutputTest : public testing::Test {
 protected:
  OutputTest() {
    spec_.run_dir = folder_.path();
    spec_.ranks = 2;
  }

  // What a worker of each rank writes to its stdout and stderr.
  void Write(Output& output, const std::string& out, const std::string& err) {
    auto workers = output.Open(0);
    ASSERT_TRUE(workers.ok()) << workers.status();
    for (const Stdio& own : *workers) {
      ASSERT_EQ(write(own.out.get(), out.data(), out.size()), static_cast<ssize_t>(out.size()));
      ASSERT_EQ(write(own.err.get(), err.data(), err.size()), static_cast<ssize_t>(err.size()));
    }
    output.Drain([](int) { return false; });
  }
  Output::Sink Console() {
    return [this](int rank, int stream, std::string_view data) {
      console_ += fmt::format("{}.{}:{} ", rank, stream, data);
    };
  }
  std::string File(const std::string& path) { return ReadFile(path).value_or("none"); }

  const TestFolder folder_;
  RunSpec spec_;
  Poller poller_;
  std::string console_;
};

TEST_F(OutputTest, GoesToTheLogOfTheRankAndToTheConsole) {
  Output output(spec_, poller_, Console());
  Write(output, "out", "err");
  EXPECT_EQ(File(LogPath(spec_, 1)), "outerr");
  EXPECT_EQ(console_, "0.1:out 0.2:err 1.1:out 1.2:err ");
  EXPECT_EQ(output.dropped_bytes(), 0u);
}

TEST_F(OutputTest, WhatTheLimitLeavesOutIsCounted) {
  spec_.log_limit = Bytes{4};
  Output output(spec_, poller_, Console());
  Write(output, "out", "err");
  EXPECT_EQ(File(LogPath(spec_, 0)), "oute");
  EXPECT_EQ(output.dropped_bytes(), 4u);
}

TEST_F(OutputTest, ARedirectedStreamHasAFileAndATeedOneBoth) {
  spec_.torchrun.log_dir = spec_.run_dir + "/logs";
  spec_.torchrun.streams = {{.file = 1}, {.file = 3, .tee = 2}};
  Output output(spec_, poller_, Console());
  Write(output, "out", "err");
  EXPECT_EQ(File(AttemptDir(spec_.torchrun, 0, 0) + "/stdout.log"), "out");
  EXPECT_EQ(File(AttemptDir(spec_.torchrun, 0, 0) + "/stderr.log"), "none");
  EXPECT_EQ(File(AttemptDir(spec_.torchrun, 0, 1) + "/stderr.log"), "err");
  EXPECT_EQ(File(LogPath(spec_, 0)), "err");
  EXPECT_EQ(console_, "0.2:err 1.2:err ");
}

// Who prints faster than we read would keep us from all else.
TEST_F(OutputTest, ARankThatNeverStopsPrintingKeepsNobodyWaiting) {
  const std::string chunk(65536, '.');
  std::vector<Stdio> workers;
  int heard = 0;
  Output output(spec_, poller_, [&](int, int, std::string_view data) {
    if (++heard == 1000) return;
    ASSERT_EQ(write(workers[0].out.get(), data.data(), data.size()), ssize_t(data.size()));
  });
  workers = *output.Open(0);
  ASSERT_EQ(write(workers[0].out.get(), chunk.data(), chunk.size()), ssize_t(chunk.size()));
  poller_.Run(Seconds{0.001}, [&] { poller_.Stop(); });
  EXPECT_LT(heard, 1000);
}

}  // namespace
}  // namespace lockstep::agent
