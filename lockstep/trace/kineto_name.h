// What the name of a profiler's file tells: "rank-34.Jul.json", "worker7.json.gz", "trace_8_rank_1.json", "run_3.json",
// and torch.profiler's own HOST_PID.TIME.pt.trace.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::trace {

inline constexpr int kMostKinetoRanks = 1 << 20;

struct KinetoName {
  std::optional<int> rank;
  std::string host, worker;  // worker: HOST_PID. Both empty: not of torch.profiler's own form
  int64_t time = 0;          // of that form: when the file was written, ns
};

KinetoName ParseKinetoName(const std::string& path);

// JSON, plain or gzipped, or SQLite of Nsight Systems, of a name that speaks of a rank or is torch.profiler's own.
bool IsKinetoName(std::string_view file);

}  // namespace lockstep::trace
