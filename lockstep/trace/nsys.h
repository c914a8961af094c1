// What one rank did, from Nsight Systems: the SQLite file of `nsys export --type sqlite` (or `nsys stats`). Kernels,
// copies and fills are the device's work, communication is told by the kernel's name, steps by NVTX ranges such as
// "step 12", "iteration_12" or "ProfilerStep#12". docs/formats/kineto.md has what is taken from which table.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/trace/kineto.h"

namespace lockstep::trace {

bool IsSqlite(const std::string& path);

// The rank is that of the file's name, else `rank`. kInvalidArgument: no database, no kernels in it, no rank, or the
// work of several processes: which is which rank is not in the file. Tables and columns that are missing, as they are
// where nothing was recorded, are taken as empty.
absl::StatusOr<KinetoRank> ReadNsys(const std::string& path, std::optional<int> rank = std::nullopt);

}  // namespace lockstep::trace
