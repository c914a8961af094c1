#include "lockstep/agent/agent_port.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/agent/wire.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::Lt;
using testing::Pair;

class AgentPortTest : public testing::Test {
 protected:
  AgentPortTest()
      : port_(poller_, clock_,
              {.connected = [this] { poller_.Stop(); }, .asked = {}, .left = [] {}, .waiting = [] {}}) {}

  void Connect() {
    const std::string path = folder_ / "socket";
    ASSERT_TRUE(port_.Listen(path).ok());
    auto agent = ConnectTo(path);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    poller_.Run(Seconds{0.05}, [] {});
    ASSERT_TRUE(port_.connected());
  }

  // What the agent hears up to this event: the output, and the events in between.
  void HearUntil(const std::string& last) {
    poller_.Watch(agent_.get(), [this, last] {
      const std::optional<Packet> packet = ReceivePacket(agent_.get());
      if (!packet || packet->closed) return;
      if (packet->text.front() == 'O') {
        output_ += packet->text.substr(2 + sizeof(int));
        return;
      }
      const std::string event = ParseJson(packet->text)["event"];
      events_.emplace_back(event, output_.size());
      if (event == last) poller_.Stop();
    });
    poller_.Run(Seconds{60}, [] { FAIL() << "it waits for a tick"; });
    poller_.Forget(agent_.get());
  }

  const TestFolder folder_;
  const SystemClock clock_;
  Poller poller_;
  AgentPort port_;
  Fd agent_;
  std::string output_;
  std::vector<std::pair<std::string, size_t>> events_;  // with how much output came before
};

std::string Megabyte(char letter) { return std::string(1 << 20, letter); }

// What an agent that was busy could not be given goes to it later, with the descriptors, though the starter has closed
// its own by then.
TEST(AgentPort, WhatWaitsKeepsItsDescriptors) {
  const TestFolder folder;
  const std::string path = folder / "socket";
  const SystemClock clock;
  Poller poller;
  AgentPort port(poller, clock, {.connected = [&] { poller.Stop(); }, .asked = {}, .left = [] {}, .waiting = [] {}});
  ASSERT_TRUE(port.Listen(path).ok());
  auto agent = ConnectTo(path);
  ASSERT_TRUE(agent.ok()) << agent.status();
  poller.Run(Seconds{0.05}, [] {});
  ASSERT_TRUE(port.connected());
  int told = 0;
  for (; !port.queued() && told < 100'000; ++told) port.Tell({{"event", "note"}, {"text", std::string(1000, '.')}});
  ASSERT_TRUE(port.queued());
  {
    const Fd memory(memfd_create("buffers", MFD_CLOEXEC));
    ASSERT_EQ(write(memory.get(), "checkpoint", 10), 10);
    port.Tell({{"event", "buffers"}}, {memory.get()});
  }
  std::optional<Packet> last;
  while (port.queued() || told > 0) {
    last = ReceivePacket(agent->get());
    ASSERT_TRUE(last && !last->closed);
    port.Flush();
    --told;
  }
  last = ReceivePacket(agent->get());
  ASSERT_TRUE(last);
  EXPECT_EQ(last->text, R"({"event":"buffers"})");
  ASSERT_EQ(last->fds.size(), 1U);
  std::string held(10, '\0');
  EXPECT_EQ(pread(last->fds[0].get(), held.data(), held.size(), 0), 10);
  EXPECT_EQ(held, "checkpoint");
}

TEST_F(AgentPortTest, OutputThatTheSocketDoesNotTakeWaits) {
  Connect();
  std::string all;
  for (const char letter : {'a', 'b', 'c', 'd', 'e'}) all += Megabyte(letter);
  for (size_t at = 0; at < all.size(); at += 65536) port_.TellOutput(0, 1, std::string_view(all).substr(at, 65536));
  port_.Tell({{"event", "exited"}});
  port_.TellAfterOutput({{"event", "stopped"}});
  HearUntil("stopped");
  EXPECT_TRUE(output_ == all) << output_.size();
  ASSERT_THAT(events_, ElementsAre(Pair("exited", Lt(all.size() / 2)), Pair("stopped", all.size())));
  EXPECT_EQ(port_.dropped_output(), 0U);
  EXPECT_FALSE(port_.queued());
}

TEST_F(AgentPortTest, WhatIsTooMuchIsCountedAndSaidInItsPlace) {
  Connect();
  const std::string chunk(65536, '.');
  for (int i = 0; i < 512; ++i) port_.TellOutput(0, 1, chunk);
  const uint64_t dropped = port_.dropped_output();
  EXPECT_GE(dropped, uint64_t{512 * 65536} - kMostOutputKept - (1 << 20));
  port_.TellOutput(0, 2, "a word");
  port_.TellAfterOutput({{"event", "stopped"}});
  HearUntil("stopped");
  EXPECT_EQ(output_.find(LeftOut(dropped)), 512 * 65536 - dropped + 6) << "stdout is left out, not stderr";
  EXPECT_THAT(output_, EndsWith("a word" + LeftOut(dropped)));
}

// Each piece of output takes more to keep than it has bytes.
TEST_F(AgentPortTest, ManySmallPiecesAreTooMuchToo) {
  Connect();
  for (size_t i = 0; i < kMostOutputKept / 16; ++i) port_.TellOutput(0, 1, ".");
  EXPECT_GT(port_.dropped_output(), 0U);
}

TEST_F(AgentPortTest, WhatWaitsForAnAgentThatGoesIsUnheard) {
  Connect();
  const std::string chunk(65536, '.');
  for (int i = 0; i < 64; ++i) port_.TellOutput(0, 1, chunk);
  ASSERT_TRUE(port_.queued());
  EXPECT_EQ(port_.unheard_since().value, 0);
  agent_.Close();
  poller_.Run(Seconds{0.001}, [this] {
    if (!port_.connected()) poller_.Stop();
  });
  EXPECT_FALSE(port_.queued());
  EXPECT_NE(port_.unheard_since().value, 0);
}

TEST(AgentPort, KnowsSinceWhenNobodyHearsOutput) {
  FakeClock clock;
  Poller poller;
  AgentPort port(poller, clock, {.connected = [] {}, .asked = {}, .left = [] {}, .waiting = [] {}});
  EXPECT_EQ(port.unheard_since().value, 0);
  clock.Advance(Seconds{7});
  const Nanos first = clock.WallNow();
  port.TellOutput(0, 1, "a");
  clock.Advance(Seconds{7});
  port.TellOutput(0, 1, "b");
  EXPECT_EQ(port.unheard_since(), first);
  EXPECT_EQ(port.dropped_output(), 0U) << "the log has it";
  port.ForgetUnheard();
  EXPECT_EQ(port.unheard_since().value, 0);
}

TEST(AgentPort, SaysThatTheAgentHasLeft) {
  const TestFolder folder;
  const SystemClock clock;
  Poller poller;
  int left = 0;
  AgentPort port(poller, clock,
                 {.connected = [&] { poller.Stop(); },
                  .asked = {},
                  .left =
                      [&] {
                        ++left;
                        poller.Stop();
                      },
                  .waiting = [] {}});
  ASSERT_TRUE(port.Listen(folder / "socket").ok());
  {
    const auto agent = ConnectTo(folder / "socket");
    ASSERT_TRUE(agent.ok()) << agent.status();
    poller.Run(Seconds{0.05}, [] {});
    EXPECT_EQ(left, 0);
  }
  poller.Run(Seconds{0.05}, [] {});
  EXPECT_EQ(left, 1);
  EXPECT_FALSE(port.connected());
}

}  // namespace
}  // namespace lockstep::agent
