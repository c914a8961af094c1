#include "lockstep/inspect/nic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

NicState Up(const std::string& name, uint64_t changes = 1) {
  return {.name = name, .operstate = "up", .hardware = true, .carrier = true, .changes = changes, .ups = 1};
}
NicState Down(const std::string& name, uint64_t changes = 2) {
  return {.name = name, .operstate = "down", .hardware = true, .changes = changes, .ups = 1};
}

class Nic : public testing::Test {
 protected:
  std::vector<std::string> Judge(const std::vector<NicState>& nics) {
    Reading reading;
    judge_.Judge(nics, At(at_ += 5), reading);
    std::vector<std::string> seen;
    for (const Condition& condition : reading.conditions)
      seen.push_back(condition.item + " " + condition.subject + ": " + condition.text);
    return seen;
  }
  double at_ = 0;
  Settings settings_ = [] {
    Settings settings;
    settings.nics = {"tun7"};
    return settings;
  }();
  NicJudge judge_{settings_};
};

TEST_F(Nic, DownIsWhoWasUp) {
  EXPECT_THAT(Judge({Up("eth0")}), IsEmpty());
  EXPECT_THAT(Judge({Down("eth0")}), ElementsAre("nic_down eth0: no carrier (operstate down)"));
  NicState off = Down("eth0");
  off.admin_up = false;
  EXPECT_THAT(Judge({off}), ElementsAre("nic_down eth0: set down (operstate down)"));
  EXPECT_THAT(Judge({}), ElementsAre("nic_down eth0: it is gone"));
  EXPECT_THAT(Judge({Up("eth0")}), IsEmpty());
}

TEST_F(Nic, APortWithoutACableIsNone) {
  NicState unused = Down("eth1");
  unused.ups = 0;
  EXPECT_THAT(Judge({unused}), IsEmpty());
  EXPECT_THAT(Judge({unused}), IsEmpty());
  NicState off = Down("eth2");
  off.admin_up = false;
  EXPECT_THAT(Judge({off}), IsEmpty()) << "somebody set it down before we came";
}

TEST_F(Nic, DownAtTheFirstLookIfItWasUpBefore) {
  EXPECT_THAT(Judge({Down("eth0")}), ElementsAre("nic_down eth0: no carrier (operstate down)"));
}

TEST_F(Nic, OfInterfacesWithoutHardwareOnlyTheDefaultRouteAndNamedOnesCount) {
  NicState bridge = Up("docker0");
  bridge.hardware = false;
  NicState veth = Up("eth0");
  veth.hardware = false;
  veth.default_route = true;
  EXPECT_THAT(Judge({bridge, veth}), IsEmpty());
  bridge.carrier = veth.carrier = veth.default_route = false;
  bridge.operstate = veth.operstate = "lowerlayerdown";
  EXPECT_THAT(Judge({bridge, veth}), ElementsAre("nic_down eth0: no carrier (operstate lowerlayerdown)"));
  EXPECT_THAT(Judge({}), IsEmpty()) << "such interfaces go in the course of things";
  NicState named{.name = "tun7", .operstate = "down"};
  EXPECT_THAT(Judge({named}), ElementsAre("nic_down tun7: no carrier (operstate down)"));
}

// 4 changes in 30 s; down and up again are two.
TEST_F(Nic, Flapping) {
  EXPECT_THAT(Judge({Up("eth0", 1)}), IsEmpty());
  EXPECT_THAT(Judge({Up("eth0", 3)}), IsEmpty());
  EXPECT_THAT(Judge({Up("eth0", 5)}), ElementsAre("port_flapping eth0: 4 changes of the carrier in 30 s"));
  for (int i = 0; i < 3; ++i) Judge({Up("eth0", 5)});
  EXPECT_EQ(Judge({Up("eth0", 5)}).size(), 1U) << "25 s after the first";
  EXPECT_THAT(Judge({Up("eth0", 5)}), IsEmpty()) << "the first two are 30 s old";
}

TEST_F(Nic, SlowChangesAreNoFlapping) {
  for (uint64_t changes = 1; changes < 40; changes += 2)
    for (int i = 0; i < 7; ++i) EXPECT_THAT(Judge({Up("eth0", changes)}), IsEmpty());  // 35 s
}

// share = errors / (packets + errors): 150 / (50000 + 150) = 0.3 %.
TEST_F(Nic, ErrorsByTheirShare) {
  NicState nic = Up("eth0");
  nic.packets = 1'000'000;
  nic.errors = 900'000;
  EXPECT_THAT(Judge({nic}), IsEmpty()) << "before our time";
  nic.packets += 50'000;
  nic.errors += 150;
  EXPECT_THAT(Judge({nic}), ElementsAre("nic_errors eth0: 150 of 50150 packets in 30 s had errors"));
  nic.packets += 10'000'000;
  EXPECT_THAT(Judge({nic}), IsEmpty()) << "150 of ten million";
}

TEST_F(Nic, AFewErrorsAreNoShare) {
  NicState nic = Up("eth0");
  Judge({nic});
  nic.packets += 10;
  nic.errors += 99;
  EXPECT_THAT(Judge({nic}), IsEmpty());
}

TEST_F(Nic, ACounterThatBeginsAnewCountsNothing) {
  NicState nic = Up("eth0", 100);
  nic.errors = 1'000'000;
  Judge({nic});
  NicState reset = Up("eth0", 3);
  EXPECT_THAT(Judge({reset}), IsEmpty());
}

TEST(NicReader, ReadsSysfs) {
  const TestTree fake;
  const std::string eth = "/sys/class/net/eth0/";
  fake.Write(eth + "operstate", "up");
  fake.Write(eth + "flags", "0x1003");
  fake.Write(eth + "carrier", "1");
  fake.Write(eth + "carrier_changes", "7");
  fake.Write(eth + "carrier_up_count", "4");
  fake.Write(eth + "statistics/rx_packets", "100");
  fake.Write(eth + "statistics/tx_packets", "20");
  fake.Write(eth + "statistics/rx_errors", "3");
  fake.Write(eth + "statistics/tx_errors", "1");
  fake.Write("/sys/class/net/lo/operstate", "unknown");
  fake.Write("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  fake.Write("/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "2");
  fake.Write("/proc/1/net/route",
             "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
             "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000");
  const std::vector<NicState> nics = ReadNics(fake.tree());
  ASSERT_EQ(nics.size(), 2U);
  EXPECT_EQ(nics[0].name, "eth0");
  EXPECT_TRUE(nics[0].default_route && nics[0].carrier && nics[0].admin_up && !nics[0].hardware);
  EXPECT_EQ(nics[0].changes, 7U);
  EXPECT_EQ(nics[0].ups, 4U);
  EXPECT_EQ(nics[0].packets, 120U);
  EXPECT_EQ(nics[0].errors, 4U);
  EXPECT_EQ(nics[1].name, "mlx5_0/1");
  EXPECT_TRUE(nics[1].carrier);
  EXPECT_EQ(nics[1].changes, 4U);
}

TEST(NicReader, WithoutSysfsItSaysSo) {
  const TestTree fake;
  const Reading reading = NicReader(Settings(), {fake.tree(), {}})->Read(At(1));
  EXPECT_EQ(reading.missing.size(), 3U);
}

}  // namespace
}  // namespace lockstep::inspect
