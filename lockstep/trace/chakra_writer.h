// Writes a Chakra execution trace of one rank, as chakra.h reads it: a GlobalMetadata message and a Node message per
// op, each behind its length (docs/formats/chakra.md).
//
//   LS_RETURN_IF_ERROR(WriteChakra("step.0.et", ops));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::trace {

struct ChakraOp {
  enum class Type : uint8_t { kCompute = 4, kSend = 5, kReceive = 6, kCollective = 7 };  // NodeType of et_def.proto
  uint64_t id = 0;
  std::string name;
  Type type = Type::kCompute;
  std::vector<uint64_t> waits_for;  // ids
  double duration_s = 0;            // written in whole microseconds
  // Of communication.
  int64_t bytes = 0;
  int source = 0, destination = 0, tag = 0;  // of a send and its receive
  int collective = 0;                        // CollectiveCommType: 0 is an all-reduce
  std::string group;
};

absl::Status WriteChakra(const std::string& path, std::span<const ChakraOp> ops);

}  // namespace lockstep::trace
