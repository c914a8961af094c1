#include "lockstep/agent/restartable_ranks.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lockstep/agent/wire.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

// Blocks: the child has nothing else to do.
Packet Await(int socket) {
  pollfd ready{socket, POLLIN, 0};
  while (poll(&ready, 1, -1) < 1) {
  }
  return ReceivePacket(socket).value();
}

class RestartableRanksTest : public testing::Test {
 protected:
  RestartableRanksTest() { EXPECT_EQ(restartable_.Listen(folder_.path()), absl::OkStatus()); }
  ~RestartableRanksTest() override {
    for (const pid_t pid : children_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  // A worker that offers itself, leaves when it is asked to, and, told to enter, prints the variable WORD.
  pid_t Worker() {
    const pid_t pid = fork();
    if (pid == 0) {
      const Fd socket = ConnectTo(folder_ / "standby.sock").value();
      if (ParseJson(Await(socket.get()).text)["op"] != "leave") _exit(2);
      if (!SendPacket(socket.get(), R"({"op":"waits"})").ok()) _exit(3);
      const Packet enter = Await(socket.get());
      const std::string word = ParseJson(enter.text)["env"]["WORD"];
      if (write(enter.fds[0].get(), word.data(), word.size()) < 0) _exit(4);
      for (;;) pause();
    }
    children_.push_back(pid);
    return pid;
  }
  template <typename Condition>
  void Until(const Condition& condition) {
    poller_.Run(Seconds{0.001}, [&] {
      if (condition()) poller_.Stop();
    });
  }

  const TestFolder folder_;
  std::vector<pid_t> children_;
  Poller poller_;
  int changes_ = 0;
  RestartableRanks restartable_{poller_, [this] { ++changes_; }};
};

TEST_F(RestartableRanksTest, AWorkerLeavesAndEntersAgain) {
  const pid_t worker = Worker();
  Until([&] {
    const bool asked = restartable_.Recall(worker);
    EXPECT_FALSE(restartable_.Waits(worker)) << "its answer can't have been heard yet";
    return asked;
  });
  EXPECT_TRUE(restartable_.Recall(worker)) << "asked twice";
  Until([&] { return restartable_.Waits(worker); });
  EXPECT_EQ(changes_, 1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Stdio stdio{Fd(ends[1]), Fd(dup(ends[1]))};
  ASSERT_EQ(restartable_.Enter(worker, {{"WORD", "again"}}, stdio), absl::OkStatus());
  EXPECT_FALSE(restartable_.Waits(worker)) << "it trains";
  char word[16] = {};
  EXPECT_EQ(read(ends[0], word, sizeof(word)), 5);
  EXPECT_STREQ(word, "again");
  close(ends[0]);
}

TEST_F(RestartableRanksTest, WhoeverOffersNothingOrIsGoneIsNotRecalled) {
  EXPECT_FALSE(restartable_.Recall(getpid()));
  const pid_t worker = Worker();
  Until([&] { return restartable_.Recall(worker); });
  Until([&] { return restartable_.Waits(worker); });
  kill(worker, SIGKILL);
  Until([&] { return !restartable_.Waits(worker); });
  EXPECT_FALSE(restartable_.Recall(worker));
}

}  // namespace
}  // namespace lockstep::agent
