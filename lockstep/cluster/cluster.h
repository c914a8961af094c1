// Cluster: what a job runs on, as a spec: accelerators, nodes, NICs, fabric, power domains. Read from TOML
// (docs/formats/job.md). Figures are those of data sheets: peaks without sparsity, decimal units, bandwidth in one
// direction. Unknown is nullopt, never 0. Invariants (Validate): counts are at least 1 (NICs: 0), known figures are
// positive, power domains cover each node at most once. Thread-compatible.
//
//   LS_ASSIGN_OR_RETURN(const Cluster cluster, ReadCluster("presets/clusters/dgx-h100-superpod.toml",
//   Presets("presets")));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/cluster/presets.h"

namespace lockstep::cluster {

inline constexpr int kMaxNodes = 1 << 20;

using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;
using Watts = Quantity<struct WattsTag, double>;

struct Accelerator {
  std::string name;
  std::string kind = "gpu";  // "gpu" or "cpu"
  std::optional<Bytes> memory;
  std::optional<BytesPerSecond> memory_bandwidth;
  std::optional<FlopsPerSecond> tf32, bf16, fp8;  // dense peaks
  std::optional<BytesPerSecond> scale_up;         // to its peers in the node or rack, all links together
  std::optional<Watts> power;                     // thermal design power
};

struct Node {
  int accelerators = 1;
  int cores = 0;  // of its CPUs; 0 = unknown
  std::optional<Bytes> memory;
  int nics = 0;  // for the job's own traffic
  std::optional<BytesPerSecond> nic_bandwidth;
  std::optional<Watts> power;  // at most
};

struct Fabric {
  std::string topology = "none";  // "none", "fat-tree", "rail-optimized"
  int nodes_per_unit = 1;         // nodes below one group of leaf switches
  int leaves_per_unit = 0;
  int spines = 0;
  double oversubscription = 1;  // bandwidth down / bandwidth up at a leaf
};

// Nodes that share a feed: [first_node, first_node + nodes).
struct PowerDomain {
  std::string name;
  int first_node = 0;
  int nodes = 1;
  Watts limit;
};

struct Cluster {
  std::string name;
  Accelerator accelerator;
  int nodes = 1;
  Node node;
  Fabric fabric;
  std::vector<PowerDomain> power_domains;

  int Accelerators() const { return nodes * node.accelerators; }
  absl::Status Validate() const;
};

absl::StatusOr<Accelerator> ReadAccelerator(const std::string& path);
absl::StatusOr<Cluster> ReadCluster(const std::string& path, const Presets& presets);

// The same from text: `file` is for errors and is what relative references start from.
absl::StatusOr<Accelerator> ParseAccelerator(std::string_view text, const std::string& file);
absl::StatusOr<Cluster> ParseCluster(std::string_view text, const std::string& file, const Presets& presets);

}  // namespace lockstep::cluster
