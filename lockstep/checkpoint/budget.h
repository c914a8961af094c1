// May the checkpoint buffers have that much memory? At most a share of what the machine and the memory cgroups of this
// process leave. Pure but for reading /proc and the cgroup tree, whose roots tests replace. Cost: a few small files.
//
//   LS_ASSIGN_OR_RETURN(const Bytes available, AvailableMemory(MemoryRoots{}));
//   LS_RETURN_IF_ERROR(CheckBudget({.ranks = 4, .per_slot = Bytes{1'200'000'000}}, available));
//   // "checkpoint buffers: 4 ranks x 2 slots x 1.2 GB = 9.6 GB; 3.1 GB may be used (half of 6.2 GB available)"
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::checkpoint {

struct MemoryRoots {
  std::string proc = "/proc";             // meminfo, self/cgroup
  std::string cgroup = "/sys/fs/cgroup";  // v2, or v1 with the controller in memory/
};

struct BudgetRequest {
  int ranks = 1;
  Bytes per_slot;
  Bytes held;   // by buffers that exist already and count as used above; they are replaced
  Bytes limit;  // the user's own, for all ranks together; 0: half of what is available
};

// The least of MemAvailable and, for each memory cgroup from this process's up to the root, its limit less what it uses
// and cannot drop.
absl::StatusOr<Bytes> AvailableMemory(const MemoryRoots& roots);

// OK, or one sentence that shows the sum.
absl::Status CheckBudget(const BudgetRequest& request, Bytes available);

// "1.2 GB", "512 B": powers of 1000, one decimal.
std::string HumanBytes(Bytes bytes);

}  // namespace lockstep::checkpoint
