#include "lockstep/top/channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/packets.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::top {
namespace {

// Somebody with a socket, who answers when the test says so.
class ChannelTest : public testing::Test {
 protected:
  Fd Accept() {
    pollfd one{listener_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 60'000), 1);
    return Fd(accept(listener_.get(), nullptr, nullptr));
  }

  const TestFolder folder_;
  const std::string path_ = folder_ / "socket";
  Fd listener_ = *ListenAt(path_);
  Poller poller_;
};

TEST_F(ChannelTest, WhoDoesNotAnswerHoldsNobodyUp) {
  std::vector<Json> heard;
  Channel channel(poller_, path_, [&](Json answer) {
    heard.push_back(std::move(answer));
    poller_.Stop();
  });
  ASSERT_TRUE(channel.Ask({{"op", "status"}}).ok());
  EXPECT_TRUE(channel.waiting());
  EXPECT_TRUE(channel.Ask({{"op", "status"}}).ok());  // nothing, for now
  const Fd other = Accept();
  EXPECT_EQ(AwaitPacket(other.get(), 60'000)->text, R"({"op":"status"})");
  ASSERT_TRUE(SendPacket(other.get(), R"({"step":3})").ok());
  poller_.Run(Seconds{60}, [] {});
  EXPECT_EQ(heard, std::vector<Json>{Json({{"step", 3}})});
  EXPECT_FALSE(channel.waiting());
}

TEST_F(ChannelTest, WhoIsGoneIsAnError) {
  Channel channel(poller_, path_, [](const Json&) {});
  listener_.Close();
  EXPECT_FALSE(channel.Ask({{"op", "status"}}).ok());
  EXPECT_FALSE(channel.waiting());
}

}  // namespace
}  // namespace lockstep::top
