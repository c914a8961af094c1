#include "lockstep/cluster/cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::cluster {
namespace {

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;
constexpr int kMaxPerNode = 1 << 10;
// Bits per second in a NIC's name, bytes per second in ours.
constexpr double kGigabit = kGiga / 8;

void ReadGigabytes(TableReader& in, std::string_view key, std::optional<Bytes>& out) {
  std::optional<double> gigabytes;
  in.Number(key, Sign::kPositive, gigabytes);
  if (!gigabytes) return;
  // 2^63 is far beyond any memory and still fits the unsigned 64 bits exactly.
  if (*gigabytes * kGiga > 0x1p63) return in.Fail(key, fmt::format("{} is too large, found {}", key, *gigabytes));
  if (*gigabytes * kGiga < 1)
    return in.Fail(key, fmt::format("{} must be at least a byte (1e-9), found {}", key, *gigabytes));
  out = Bytes{static_cast<uint64_t>(*gigabytes * kGiga)};
}

void ReadNode(TableReader& in, Node& node) {
  in.Integer("accelerators", {.least = 1, .most = kMaxPerNode}, node.accelerators);
  in.Integer("cores", {.least = 1, .most = 1 << 16}, node.cores);
  ReadGigabytes(in, "memory_gb", node.memory);
  in.Integer("nics", {.least = 0, .most = kMaxPerNode}, node.nics);
  in.Number("nic_gbit_s", Sign::kPositive, node.nic_bandwidth, kGigabit);
  in.Number("power_w", Sign::kPositive, node.power);
}

void ReadFabric(TableReader& in, Fabric& fabric) {
  in.OneOf("topology", {"none", "fat-tree", "rail-optimized"}, fabric.topology);
  in.Integer("nodes_per_unit", {.least = 1, .most = kMaxNodes}, fabric.nodes_per_unit);
  in.Integer("leaves_per_unit", {.least = 1, .most = kMaxNodes}, fabric.leaves_per_unit);
  in.Integer("spines", {.least = 1, .most = kMaxNodes}, fabric.spines);
  in.Number("oversubscription", Sign::kPositive, fabric.oversubscription);
}

void ReadPowerDomain(TableReader& in, const Cluster& cluster, PowerDomain& domain) {
  in.Require({"name", "limit_w"});
  in.Text("name", domain.name);
  in.Integer("first_node", {.least = 0, .most = cluster.nodes - 1}, domain.first_node);
  in.Integer("nodes", {.least = 1, .most = cluster.nodes - domain.first_node}, domain.nodes);
  in.Number("limit_w", Sign::kPositive, domain.limit);
}

void ReadAcceleratorOf(TableReader& in, const std::string& file, const Presets& presets, Accelerator& accelerator) {
  std::string name;
  in.Text("accelerator", name);
  if (name.empty()) return;
  const absl::StatusOr<std::string> path = presets.Find("accelerators", name, FolderOf(file));
  const absl::StatusOr<Accelerator> read =
      path.ok() ? ReadAccelerator(*path) : absl::StatusOr<Accelerator>(path.status());
  if (!read.ok()) return in.Fail("accelerator", "accelerator: " + Message(read.status()));
  accelerator = *read;
}

}  // namespace

absl::Status Cluster::Validate() const {
  if (nodes < 1) return InvalidArgument("nodes must be at least 1, found {}", nodes);
  if (node.accelerators < 1)
    return InvalidArgument("node.accelerators must be at least 1, found {}", node.accelerators);
  std::vector<PowerDomain> domains = power_domains;
  std::sort(domains.begin(), domains.end(), [](const auto& a, const auto& b) { return a.first_node < b.first_node; });
  int free_from = 0;
  for (const PowerDomain& domain : domains) {
    const int end = domain.first_node + domain.nodes;
    if (domain.first_node < free_from)
      return InvalidArgument("power_domain {} shares node {} with another", domain.name, domain.first_node);
    if (end > nodes)
      return InvalidArgument("power_domain {} reaches node {}, but nodes is {}", domain.name, end - 1, nodes);
    free_from = end;
  }
  return absl::OkStatus();
}

absl::StatusOr<Accelerator> ParseAccelerator(std::string_view text, const std::string& file) {
  LS_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  Accelerator accelerator;
  TableReader in(root, file);
  in.Require({"name"});
  in.Text("name", accelerator.name);
  in.OneOf("kind", {"gpu", "cpu"}, accelerator.kind);
  ReadGigabytes(in, "memory_gb", accelerator.memory);
  in.Number("memory_gb_s", Sign::kPositive, accelerator.memory_bandwidth, kGiga);
  in.Number("tf32_tflops", Sign::kPositive, accelerator.tf32, kTera);
  in.Number("bf16_tflops", Sign::kPositive, accelerator.bf16, kTera);
  in.Number("fp8_tflops", Sign::kPositive, accelerator.fp8, kTera);
  in.Number("scale_up_gb_s", Sign::kPositive, accelerator.scale_up, kGiga);
  in.Number("power_w", Sign::kPositive, accelerator.power);
  LS_RETURN_IF_ERROR(in.Finish());
  return accelerator;
}

absl::StatusOr<Cluster> ParseCluster(std::string_view text, const std::string& file, const Presets& presets) {
  LS_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  Cluster cluster;
  TableReader in(root, file);
  in.Require({"name", "accelerator"});
  in.Text("name", cluster.name);
  ReadAcceleratorOf(in, file, presets, cluster.accelerator);
  in.Integer("nodes", {.least = 1, .most = kMaxNodes}, cluster.nodes);
  in.Table("node", [&](TableReader& inner) { ReadNode(inner, cluster.node); });
  in.Table("fabric", [&](TableReader& inner) { ReadFabric(inner, cluster.fabric); });
  in.Tables("power_domain",
            [&](TableReader& inner) { ReadPowerDomain(inner, cluster, cluster.power_domains.emplace_back()); });
  in.Check(cluster.Validate());
  LS_RETURN_IF_ERROR(in.Finish());
  return cluster;
}

absl::StatusOr<Accelerator> ReadAccelerator(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseAccelerator(text, path);
}

absl::StatusOr<Cluster> ReadCluster(const std::string& path, const Presets& presets) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseCluster(text, path, presets);
}

}  // namespace lockstep::cluster
