#include "lockstep/agent/inspection.h"

#include <gtest/gtest.h>

#include "lockstep/inspect/test_tree.h"

namespace lockstep::agent {
namespace {

inspect::Settings Quick() {
  inspect::Settings settings;
  settings.nics = {"eth0"};
  inspect::Item& item = settings["nic_down"];
  item.interval = {0.01};
  item.tolerance = {0};
  item.readings = 1;
  return settings;
}

TEST(Inspection, AnAlertComesAndIsOverInThePollersThread) {
  const inspect::TestTree fake;
  fake.Write("/sys/class/net/eth0/operstate", "down");
  Poller poller;
  const SystemClock clock;
  std::vector<inspect::Alert> heard;
  const std::thread::id own = std::this_thread::get_id();
  const Inspection inspection(poller, clock, Quick(), {fake.tree(), {}}, [&](const inspect::Alert& alert) {
    EXPECT_EQ(std::this_thread::get_id(), own);
    heard.push_back(alert);
    if (heard.size() == 1) fake.Write("/sys/class/net/eth0/operstate", "up");
    if (heard.size() == 2) poller.Stop();
  });
  poller.Run(Seconds{60}, [] {});
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard[0].item, "nic_down");
  EXPECT_EQ(heard[0].subject, "eth0");
  EXPECT_EQ(heard[0].cleared.value, 0);
  EXPECT_NE(heard[1].cleared.value, 0);
}

}  // namespace
}  // namespace lockstep::agent
