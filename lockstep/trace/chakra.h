// A Chakra execution trace (MLCommons): the ops of one rank with what each waits for, as protobuf: a GlobalMetadata
// message, then a Node message per op, each behind its length. docs/formats/chakra.md has what is taken from which
// field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/counter.h"

namespace lockstep::trace {

struct ChakraNode {
  uint64_t id = 0;
  std::string name;
  std::vector<uint64_t> waits_for;  // ids
  double duration_s = 0;
  // Of communication, else empty: its kind ("allreduce") and with whom: nodes of ranks with the same `meets` meet in
  // their order.
  std::string kind, meets;
};

struct ChakraRank {
  std::string path;
  int rank = -1;
  std::vector<ChakraNode> nodes;
  std::vector<Counter> counters;
};

// The rank is that of the file's name ("rank-3.et", "chakra.3.et"), else `rank`. kInvalidArgument names file and node:
// no such trace, cut off, an id twice, no rank.
absl::StatusOr<ChakraRank> ReadChakra(const std::string& path, std::optional<int> rank = std::nullopt);

}  // namespace lockstep::trace
