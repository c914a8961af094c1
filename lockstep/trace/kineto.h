// What one rank did, from a PyTorch profiler trace (Kineto's Chrome JSON): its work on the device, which of it is
// communication with whom, and its steps. All three eras of time stamps are read: integer microseconds, decimals, and
// decimals since baseTimeNanoseconds. docs/formats/kineto.md has what is taken from which event.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/counter.h"
#include "lockstep/trace/data_wait.h"

namespace lockstep::trace {

inline constexpr uint32_t kNoIndex = ~0U;
inline constexpr int64_t kNoTime = INT64_MIN;
inline constexpr char kHostStream[] = "gloo";  // of communication by threads of the host, several at a time

// A send to and a receive from the same rank in one: as NCCL's kernel is called.
inline constexpr char kExchange[] = "sendrecv";

// A kernel, copy or fill on a device stream; for a job without devices, work of a thread of the host.
struct DeviceOp {
  int64_t begin_ns, duration_ns;
  int64_t launch_ns;           // when the host issued it; kNoTime: not in the file
  uint32_t stream;             // index into KinetoRank::streams
  uint32_t collective;         // index into KinetoRank::collectives; kNoIndex: no communication
  uint32_t part = kNoIndex;    // of a step that compute belongs to: index into KinetoRank::parts; kNoIndex: not told
  uint32_t kernel = kNoIndex;  // its name: index into KinetoRank::kernels; kNoIndex: of the host

  int64_t end_ns() const { return begin_ns + duration_ns; }
};

// What is known of a communication beside when it ran.
struct Collective {
  std::string name;           // "allreduce", as far as it is told; else from the kernel's name
  uint32_t group = kNoIndex;  // index into KinetoRank::groups; kNoIndex: not told
  int64_t sequence = -1;      // within the group; -1: not told
  int64_t elements_in = -1, elements_out = -1;
  // Of a send or a receive: the other end, a rank of the job; -1: not told, or no transfer.
  int peer = -1;
  bool sends = false;  // an exchange does, too
  bool operator==(const Collective&) const = default;
};

struct ProcessGroup {
  std::string name, description;
  std::vector<int> ranks;  // global, ascending; empty: not told
  bool operator==(const ProcessGroup&) const = default;
};

struct ProfilerStep {
  int64_t number;
  int64_t begin_ns, duration_ns;  // on the host
};

struct KinetoRank {
  std::string path;
  int rank = -1;
  int world_size = -1;  // -1: not told
  std::string host;     // of torch's own file names, HOST_PID.TIME.pt.trace.json; empty: not told
  std::string backend;
  std::optional<int64_t> base_ns;       // baseTimeNanoseconds, which is in all times; nullopt: not told
  std::vector<ProfilerStep> steps;      // ascending
  std::vector<DeviceOp> ops;            // by stream, then begin
  std::vector<std::string> streams;     // "device 0 stream 7"
  std::vector<std::string> kernels;     // names of work on the device, each once
  std::vector<Collective> collectives;  // each kind once
  std::vector<ProcessGroup> groups;
  std::vector<std::string> parts;    // "forward"
  std::vector<DataWait> data_waits;  // for its data service, by boot_end_ns, on the clock of the ops; none: not told
  std::vector<Counter> counters;
};

// A file of Nsight Systems too (trace/nsys.h): it is told by its content. Errors name the file. The rank is the one
// that the file tells, else that of its name ("rank-3", "worker3"), else `rank`; kInvalidArgument without any.
absl::StatusOr<KinetoRank> ReadKineto(const std::string& path, std::optional<int> rank = std::nullopt);
// Many at once, on as many threads as there are cores. The first error, in the order of the paths. A file that was cut
// off before it told its base has that of the others.
absl::StatusOr<std::vector<KinetoRank>> ReadKinetoFiles(const std::vector<std::string>& paths, std::optional<int> rank);

}  // namespace lockstep::trace
