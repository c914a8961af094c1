// Rings of nodes that are threads, over loopback: healthy, with a node missing, with strangers, with damage on the way.
#include "lockstep/probe/neighbours.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

namespace lockstep::probe {
namespace {

using testing::HasSubstr;

// Free ports, which nobody else is given while these sockets live.
class Ports {
 public:
  explicit Ports(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Fd fd(socket(AF_INET, SOCK_STREAM, 0));
      const int on = 1;
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on,
                 sizeof on);  // bound, not listening: the test may listen there
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t bytes = sizeof address;
      bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes);
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
      nodes_.push_back({"127.0.0.1", ntohs(address.sin_port)});
      held_.push_back(std::move(fd));
    }
  }
  const std::vector<Endpoint>& nodes() const { return nodes_; }

 private:
  std::vector<Fd> held_;
  std::vector<Endpoint> nodes_;
};

using Reports = std::vector<std::vector<Measurement>>;

class Neighbours : public testing::Test {
 protected:
  std::vector<Measurement> RunOne(const Ports& ports, size_t self, Seconds wait, const TamperSent& tamper = {}) const {
    return MeasureNeighbours(Budget(clock_, Seconds{20}, {}),
                             {.nodes = ports.nodes(), .self = self, .wait = wait, .tamper = tamper});
  }
  Reports Run(const Ports& ports, std::vector<size_t> present, Seconds wait, size_t bad = 99,
              const TamperSent& tamper = {}) const {
    Reports reports(ports.nodes().size());
    std::vector<std::jthread> nodes;
    for (const size_t self : present)
      nodes.emplace_back([&, self] { reports[self] = RunOne(ports, self, wait, self == bad ? tamper : TamperSent()); });
    nodes.clear();
    return reports;
  }
  const SystemClock clock_;
};

TEST_F(Neighbours, AllGatherInRingsOfAnySize) {
  for (const size_t count : {2, 3, 5}) {
    const Ports ports(count);
    std::vector<size_t> all(count);
    for (size_t i = 0; i < count; ++i) all[i] = i;
    for (const std::vector<Measurement>& report : Run(ports, all, Seconds{20})) {
      ASSERT_EQ(report.size(), 3u);
      for (const Measurement& one : report) EXPECT_TRUE(one.ok) << one.name << ": " << one.text;
      EXPECT_GT(report[1].value, 0);
      EXPECT_THAT(report[2].text, HasSubstr(count == 2 ? "4 blocks compared" : "4 blocks compared"));
    }
  }
}

TEST_F(Neighbours, DamageIsFoundWhereItArrivesAndNowhereElse) {
  const Ports ports(3);
  const auto flip = [](size_t owner, std::span<uint64_t> block) {
    if (owner == 0) block[5] ^= 2;  // node 1 damages what it passes on for node 0
  };
  const Reports reports = Run(ports, {0, 1, 2}, Seconds{20}, 1, flip);
  EXPECT_TRUE(reports[0][2].ok);
  EXPECT_TRUE(reports[1][2].ok);
  EXPECT_FALSE(reports[2][2].ok);
  EXPECT_THAT(reports[2][2].text, HasSubstr("words arrived wrong; first, word 5:"));
  EXPECT_EQ(reports[2][2].with, EndpointText(ports.nodes()[1]));
}

TEST_F(Neighbours, WhoIsMissingIsNamedByBothAndBehindItNobodyIsBlamed) {
  const Ports ports(4);
  const Reports reports = Run(ports, {0, 1, 3}, Seconds{0.3});
  EXPECT_FALSE(reports[1][0].ok);  // can't reach node 2
  EXPECT_EQ(reports[1][0].with, EndpointText(ports.nodes()[2]));
  EXPECT_THAT(reports[1][0].text, HasSubstr("connecting: Connection refused"));
  EXPECT_FALSE(reports[3][1].ok);  // hears nothing of it
  EXPECT_THAT(reports[3][1].text, HasSubstr("it did not come within 0.3 s"));
  EXPECT_TRUE(reports[0][1].ok);  // is told by node 3
  EXPECT_THAT(reports[0][1].text, HasSubstr("not finished, because of " + EndpointText(ports.nodes()[3])));
}

// Sends `text` to `place` and closes when the other side has.
void Knock(const Endpoint& place, const std::string& text) {
  const SystemClock clock;
  const absl::StatusOr<Fd> fd = ConnectTo(place, Budget(clock, Seconds{20}, {}));
  ASSERT_TRUE(fd.ok());
  send(fd->get(), text.data(), text.size(), MSG_NOSIGNAL);
  char byte;
  while (WaitFor(fd->get(), POLLIN, Budget(clock, Seconds{5}, {})) && recv(fd->get(), &byte, 1, 0) > 0) {
  }
}

TEST_F(Neighbours, StrangersAreSaidAndDoNotDisturb) {
  const Ports ports(2);
  std::vector<Measurement> alone;
  {
    const std::jthread node([&] { alone = RunOne(ports, 0, Seconds{1}); });
    Knock(ports.nodes()[0], "GET / HTTP/1.1\r\nHost: of a browser, which says so at length\r\n\r\n");
  }
  EXPECT_FALSE(alone[1].ok);
  EXPECT_THAT(
      alone[1].text,
      HasSubstr(
          "somebody came, but it is no lockstep probe: expected \"LSPROBE1\", found \"GET / HTTP/1.1\\x0d\\x0a\""));

  Reports both(2);
  {
    const std::jthread first([&] { both[0] = RunOne(ports, 0, Seconds{20}); });
    Knock(ports.nodes()[0], std::string(100, '\0'));
    both[1] = RunOne(ports, 1, Seconds{20});
  }
  for (const std::vector<Measurement>& report : both)
    for (const Measurement& one : report) EXPECT_TRUE(one.ok) << one.text;
}

// More than are heard at a time, and all of them before the probe begins.
TEST_F(Neighbours, StrangersThatStoodAtTheDoorBeforeTakeNoTime) {
  const Ports ports(2);
  absl::StatusOr<Fd> door = Listen(ports.nodes()[0], Budget(clock_, Seconds{20}, {}));
  ASSERT_TRUE(door.ok()) << door.status();
  ASSERT_EQ(0, listen(door->get(), 128));
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) {
    absl::StatusOr<Fd> fd = ConnectTo(ports.nodes()[0], Budget(clock_, Seconds{20}, {}));
    ASSERT_TRUE(fd.ok()) << fd.status();
    silent.push_back(*std::move(fd));
  }
  Reports both(2);
  {
    const std::jthread first([&] {
      both[0] =
          MeasureNeighbours(Budget(clock_, Seconds{20}, {}),
                            {.nodes = ports.nodes(), .self = 0, .listener = door->Release(), .wait = Seconds{10}});
    });
    both[1] = RunOne(ports, 1, Seconds{10});
  }
  for (const std::vector<Measurement>& report : both)
    for (const Measurement& one : report) EXPECT_TRUE(one.ok) << one.text;
}

TEST_F(Neighbours, StopsWhenAsked) {
  const Ports ports(2);
  std::stop_source stop;
  stop.request_stop();
  const auto report = MeasureNeighbours(Budget(clock_, Seconds{3600}, stop.get_token()),
                                        {.nodes = ports.nodes(), .self = 0, .wait = Seconds{3600}});
  EXPECT_FALSE(report[0].ok);
}

TEST(Wire, FramesAreReadBackAndDamageIsTold) {
  const Frame frame{.kind = FrameKind::kBlock, .sender = 3, .owner = 1, .nodes = 4, .bytes = 1ULL << 40};
  std::string text = EncodeFrame(frame);
  ASSERT_EQ(text.size(), kFrameBytes);
  const absl::StatusOr<Frame> read = DecodeFrame(text);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(EncodeFrame(*read), text);
  for (size_t bit = 0; bit < 36 * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(DecodeFrame(text).ok()) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
  }
}

TEST(Wire, Addresses) {
  EXPECT_EQ(ParsePeer("node1:29600")->host, "node1");
  EXPECT_EQ(EndpointText(*ParsePeer("[::1]:80")), "[::1]:80");
  for (const char* text : {"", "node1", ":1", "node1:", "node1:0", "node1:65536", "node1:x", "node1:80x"})
    EXPECT_FALSE(ParsePeer(text).ok()) << text;
  EXPECT_THAT(Message(ParsePeer("fd00::1:29600").status()), HasSubstr("in brackets ([fd00::1]:29600), found"));
}

}  // namespace
}  // namespace lockstep::probe
