#include "lockstep/agent/agent_port.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/agent/wire.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

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
