#include "lockstep/cluster/cluster.h"

#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::cluster {
namespace {

const Presets& Shipped() {
  static const Presets presets(LOCKSTEP_PRESETS);
  return presets;
}

std::string ErrorOf(std::string_view text) { return Message(ParseCluster(text, "c.toml", Shipped()).status()); }

TEST(Presets, AllAcceleratorsAndClustersAreRead) {
  for (const std::string& name : Shipped().Names("accelerators")) {
    const auto accelerator = ReadAccelerator(*Shipped().Find("accelerators", name, "."));
    ASSERT_TRUE(accelerator.ok()) << accelerator.status();
    EXPECT_EQ(accelerator->name, name);
  }
  for (const std::string& name : Shipped().Names("clusters")) {
    const auto cluster = ReadCluster(*Shipped().Find("clusters", name, "."), Shipped());
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    EXPECT_EQ(cluster->name, name);
  }
  EXPECT_EQ(Shipped().Names("accelerators").size(), 5U);
  EXPECT_EQ(Shipped().Names("clusters").size(), 2U);
}

TEST(Cluster, UnitsAreConverted) {
  const auto pod = ReadCluster(*Shipped().Find("clusters", "dgx-h100-superpod", "."), Shipped());
  ASSERT_TRUE(pod.ok()) << pod.status();
  EXPECT_EQ(pod->Accelerators(), 1016);  // 127 nodes of 8
  EXPECT_EQ(pod->accelerator.memory->value, 80'000'000'000U);
  EXPECT_DOUBLE_EQ(pod->accelerator.bf16->value, 989.5e12);
  EXPECT_DOUBLE_EQ(pod->node.nic_bandwidth->value, 50e9);  // 400 Gb/s / 8
  EXPECT_DOUBLE_EQ(pod->node.power->value, 10'200);
}

TEST(Cluster, ErrorsNameThePlace) {
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = 'h100-smx'\n"),
            "c.toml:2:15: accelerator: \"h100-smx\" is not among the accelerators; did you mean h100-sxm?");
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = 'cpu'\nnodes = 0\n"),
            "c.toml:3:9: nodes must be between 1 and 1048576, found 0");
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = 'cpu'\n[fabric]\ntopologie = 'fat-tree'\n"),
            "c.toml:4:1: fabric.topologie is not a known key; did you mean topology?");
  EXPECT_EQ(ErrorOf("name = 'c'\n"), "c.toml:1:1: accelerator is missing");
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = './no.toml'\n"), "c.toml:2:15: accelerator: ././no.toml: no such file");
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = 'cpu'\n[node]\nmemory_gb = 1e30\n"),
            "c.toml:4:13: node.memory_gb is too large, found 1e+30");
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = 'cpu'\n[node]\nmemory_gb = 1e-12\n"),
            "c.toml:4:13: node.memory_gb must be at least a byte (1e-9), found 1e-12");
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = ''\n"), "c.toml:2:15: accelerator must not be empty");
  EXPECT_EQ(ErrorOf("name = 'c'\naccelerator = 'h100'\n"),
            "c.toml:2:15: accelerator: \"h100\" is not among the accelerators; did you mean h100-sxm?");
  EXPECT_EQ(Message(ParseAccelerator("name = 'a'\nbf16_tflops = 1e300\n", "a.toml").status()),
            "a.toml:2:15: bf16_tflops is too large, found 1e+300");
}

TEST(Presets, AFileMustBeNamedAsOne) {
  const TestFolder folder;
  folder.Write("garbage", "x");
  EXPECT_EQ(Message(Shipped().Find("policy", "garbage", folder.path()).status()),
            "garbage: a file, but its name does not end with .toml, and so it was taken for that of a preset");
  EXPECT_TRUE(Shipped().Find("policy", "default", folder.path()).ok());
}

TEST(Cluster, PowerDomainsMayNotOverlapOrLeaveTheCluster) {
  const std::string head = "name = 'c'\naccelerator = 'cpu'\nnodes = 4\n";
  const std::string first = "[[power_domain]]\nname = 'a'\nnodes = 2\nlimit_w = 1000\n";
  const auto cluster = ParseCluster(
      head + first + "[[power_domain]]\nname = 'b'\nfirst_node = 2\nnodes = 2\nlimit_w = 1000\n", "c.toml", Shipped());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->power_domains[1].limit, Watts{1000});
  EXPECT_EQ(ErrorOf(head + first + "[[power_domain]]\nname = 'b'\nfirst_node = 1\nlimit_w = 1\n"),
            "c.toml:4:1: power_domain b shares node 1 with another");
  EXPECT_EQ(ErrorOf(head + "[[power_domain]]\nname = 'b'\nfirst_node = 3\nnodes = 2\nlimit_w = 1\n"),
            "c.toml:7:9: power_domain.nodes must be between 1 and 1, found 2");
}

}  // namespace
}  // namespace lockstep::cluster
