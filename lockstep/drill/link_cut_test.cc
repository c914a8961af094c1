#include "lockstep/drill/link_cut.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

namespace lockstep::drill {
namespace {

std::string OutputOf(const std::string& command) {
  std::string text;
  std::array<char, 4096> part;
  FILE* pipe = popen(command.c_str(), "r");
  while (const size_t size = fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), size);
  pclose(pipe);
  return text;
}

// In a network namespace that goes with the thread.
void InNamespace(const std::function<void()>& body) {
  std::thread([&] {
    ASSERT_EQ(unshare(CLONE_NEWNET), 0);
    body();
  }).join();
}

// Two links to the same neighbour, with all that a link takes with it when it goes down.
constexpr char kNetwork[] = R"(set -e
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
ip link set lo up
for i in 1 2; do
  ip link add a$i type veth peer name b$i
  ip address add 10.$i.0.1/24 dev a$i
  ip -6 address add fd0$i::1/64 dev a$i
  ip link set a$i up
  ip link set b$i up
  ip neighbour add 10.$i.0.2 lladdr 02:00:00:00:00:01 dev a$i nud permanent
done
ip route add default via 10.1.0.2
ip route add default via 10.2.0.2 metric 7
ip route add 192.168.7.0/24 via 10.2.0.9 mtu 1400
ip route append 192.168.7.0/24 via 10.2.0.8
ip route add 192.168.8.0/24 nexthop via 10.1.0.3 weight 2 nexthop via 10.2.0.3
ip route add 192.168.9.0/24 via 10.1.0.4 table 77
ip route add blackhole 192.168.10.0/24
ip -6 route add default via fd01::2
ip -6 route add fd77::/64 nexthop via fd01::3 nexthop via fd02::3
)";

// Times pass, and the kernel notes the use of a neighbour; the rest must be the same to the letter, and in its order,
// once the kernel has seen that the links are up.
std::string Network() {
  return OutputOf(
      "while [ -n \"$(ip -6 address show tentative)\" ]; do sleep 0.01; done;"
      "ip -4 route show table all; ip -6 route show table all | sort; ip -o -6 address show scope global | sort;"
      "ip -o link show up | cut -d' ' -f2 | sort; ip neighbour show nud permanent | sort");
}

class LinkCutTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bool may = false;
    std::thread([&] { may = unshare(CLONE_NEWNET) == 0; }).join();
    if (!may) GTEST_SKIP() << "no network namespace may be made here";
    if (OutputOf("ip -V").empty()) GTEST_SKIP() << "no ip (iproute2) here";
  }
};

TEST_F(LinkCutTest, WhatALinkTakesWithItIsBackAfterwards) {
  InNamespace([] {
    ASSERT_EQ(std::system(kNetwork), 0);
    const std::string before = Network();
    ASSERT_NE(before.find("192.168.8.0"), std::string::npos) << before;
    auto cut = LinkCut::Prepare();
    ASSERT_TRUE(cut.ok()) << cut.status();
    ASSERT_TRUE(cut->Cut().ok());
    EXPECT_EQ(OutputOf("ip -o link show up | cut -d' ' -f2"), "lo:\n");
    EXPECT_EQ(OutputOf("ip -4 route"), "blackhole 192.168.10.0/24 \n");
    const absl::Status mended = cut->Mend();
    EXPECT_TRUE(mended.ok()) << mended;
    EXPECT_EQ(Network(), before);
  });
}

TEST_F(LinkCutTest, WhatCannotBeMadeAgainIsSaid) {
  InNamespace([] {
    ASSERT_EQ(std::system(kNetwork), 0);
    auto cut = LinkCut::Prepare();
    ASSERT_TRUE(cut.ok()) << cut.status();
    ASSERT_TRUE(cut->Cut().ok());
    ASSERT_EQ(std::system("ip link delete a2"), 0);
    const absl::Status mended = cut->Mend();
    EXPECT_NE(Message(mended).find("not as before: link"), std::string::npos) << mended;
    EXPECT_NE(OutputOf("ip -4 route").find("default via 10.1.0.2"), std::string::npos) << "the other one is back";
  });
}

TEST_F(LinkCutTest, WithoutALinkThereIsNothingToCut) {
  InNamespace([] { EXPECT_TRUE(absl::IsNotFound(LinkCut::Prepare().status())); });
}

}  // namespace
}  // namespace lockstep::drill
