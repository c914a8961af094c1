#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/file.h"
#include "lockstep/inspect/alert.h"

namespace lockstep::inspect {
namespace {

using testing::HasSubstr;

TEST(Settings, ThePresetHasTheDefaultsAndEveryKey) {
  const absl::StatusOr<std::string> preset = ReadFile(LOCKSTEP_PRESETS "/inspect/default.toml");
  ASSERT_TRUE(preset.ok()) << Message(preset.status());
  EXPECT_EQ(*preset, SettingsText(Settings())) << "lockstep inspect --print-config writes it";
  const auto read = ParseSettings(*preset, "default.toml");
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(*read, Settings());
}

// The paper's Table 3: NIC crash and port flapping 30 s, driver hang, heat and a lost GPU 10 s, kernel faults 2 s.
TEST(Settings, DefaultsFollowTheTable) {
  const Settings settings;
  EXPECT_EQ(settings["nic_down"].tolerance, Seconds{30});
  EXPECT_EQ(settings["port_flapping"].window, Seconds{30});
  EXPECT_EQ(*settings["gpu_driver_hang"].threshold, 10);
  EXPECT_EQ(settings["gpu_temperature"].tolerance, Seconds{10});
  EXPECT_EQ(settings["gpu_lost"].tolerance, Seconds{10});
  EXPECT_EQ(settings["kernel_fault"].interval, Seconds{2});
  EXPECT_EQ(settings["kernel_fault"].tolerance, Seconds{0});
  std::set<std::string> names;
  for (const Item& item : settings.items) names.insert(item.name);
  EXPECT_EQ(names.size(), settings.items.size());
}

TEST(Settings, SomeKeysOnly) {
  const auto settings = ParseSettings(
      "nics = [\"ib0\"]\n[nic_down]\ntolerance_s = 5\nclass = \"machine\"\n[disk_full]\nthreshold_share = 0.1\n",
      "a.toml");
  ASSERT_TRUE(settings.ok()) << Message(settings.status());
  EXPECT_EQ(settings->nics, std::vector<std::string>{"ib0"});
  EXPECT_EQ((*settings)["nic_down"].tolerance, Seconds{5});
  EXPECT_EQ((*settings)["nic_down"].fault, FaultClass::kMachine);
  EXPECT_EQ((*settings)["nic_down"].interval, Settings()["nic_down"].interval);
  EXPECT_EQ(*(*settings)["disk_full"].threshold, 0.1);
}

TEST(Settings, NamesOfNicsAreEscaped) {
  Settings settings;
  settings.nics = {"a\"b", "c\\d"};
  const auto read = ParseSettings(SettingsText(settings), "a.toml");
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(*read, settings);
}

TEST(Settings, ErrorsNameThePlace) {
  const auto error = [](const char* text) { return Message(ParseSettings(text, "a.toml").status()); };
  EXPECT_EQ(error("[nic_dwon]\ninterval_s = 1\n"), "a.toml:1:2: nic_dwon is not a known key; did you mean nic_down?");
  EXPECT_EQ(error("[nic_down]\ntolerance_s = -1\n"),
            "a.toml:2:15: nic_down.tolerance_s must not be negative, found -1");
  EXPECT_EQ(error("[nic_down]\ninterval_s = \"5\"\n"),
            "a.toml:2:14: nic_down.interval_s must be a number, found \"5\"");
  EXPECT_THAT(error("[nic_down]\nthreshold_share = 1\n"),
              HasSubstr("a.toml:2:1: nic_down.threshold_share is not a known key"));
  EXPECT_THAT(error("[nic_down]\nclass = \"broken\"\n"),
              HasSubstr("must be one of machine, network, software, warning"));
  EXPECT_THAT(error("nic_down = 3\n"), HasSubstr("a.toml:1:12: nic_down must be a table"));
  EXPECT_EQ(error("[nic_down]\ninterval_s = 0.001\n"), "a.toml:2:14: nic_down.interval_s must be at least 0.05");
  EXPECT_EQ(error("[oom_kill]\nwindow_s = 1e9\n"), "a.toml:2:12: oom_kill.window_s must be at most 86400");
  EXPECT_THAT(error("[nic_down\n"), HasSubstr("a.toml:1:"));
}

TEST(Alert, Text) {
  Alert alert{"nic_down", "eth0", FaultClass::kNetwork, "no carrier", ToNanos({10}), ToNanos({41}), {}, 1};
  EXPECT_EQ(AlertText(alert), "nic_down eth0: no carrier (network; for 31 s)");
  alert.cleared = ToNanos({70});
  alert.times = 3;
  EXPECT_EQ(AlertText(alert), "nic_down eth0: no carrier (network; over after 60 s, 3 times by now)");
}

}  // namespace
}  // namespace lockstep::inspect
