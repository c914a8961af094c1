// What profiler files tell of communications, piece by piece, before it is known to which kernel each piece belongs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/trace/chrome_trace.h"
#include "lockstep/trace/kineto.h"

namespace lockstep::trace {

inline constexpr std::string_view kCollectiveName = "Collective name";  // the arg

// What is known of a communication while the file is read.
struct Told {
  Collective collective;
  std::string group_name, group_description;
  std::optional<std::vector<int>> ranks;
  int64_t start = -1, stride = -1, size = -1;
  int64_t source = -1, destination = -1;  // of a transfer, the other end: its place in the group
};

// The args of a communication kernel or of record_param_comms; others say nothing.
void ReadCollective(std::string_view key, JsonValue value, Told& told);

// "send", "recv"; and "sendrecv", as the kernel of all of them is called.
bool IsTransferKernel(std::string_view name);

// Sends and receives that the host told of, each by itself. NCCL makes one kernel of those of a group call
// (torch's batch_isend_irecv), and that kernel tells nothing.
class FusedTransfers {
 public:
  void Add(int64_t begin_ns, const Told& told);
  // Of those that began behind `after` and up to `until`: a single one as it is, several between the same two ranks as
  // an exchange; with several ranks of a group as an exchange in that group, without a peer. nullopt: none, or of
  // several groups.
  std::optional<Told> Between(int64_t after_ns, int64_t until_ns);

 private:
  std::vector<std::pair<int64_t, Told>> transfers_;
  bool sorted_ = true;
};

}  // namespace lockstep::trace
