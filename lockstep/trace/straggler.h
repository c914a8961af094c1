// The straggler schema: one row per recorded op of a pipelined training job, as NDTimeline writes it and the what-if
// straggler analysis (OSDI'25) publishes it. docs/formats/straggler.md describes the columns.
//
// A row stands for a tensor-parallel group: there is a row set per data-parallel rank and stage, none per
// tensor-parallel rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/trace/counter.h"

namespace lockstep::trace {

enum class OpType : uint8_t {
  kForwardCompute,
  kBackwardCompute,
  kForwardSend,
  kForwardRecv,
  kBackwardSend,
  kBackwardRecv,
  kParamsAllGather,
  kGradsReduceScatter,
  kLayernormGradsAllReduce,
  kEmbeddingGradsAllReduce,
  kSeparateGradsAllReduce,
  kOptimizerClipMainGrad,
  kOptimizer,
  kGc,
  // Not of the schema; of jobs that are made from profiler traces:
  kSegment,     // compute between two points at which it meets communication
  kCollective,  // a communication of whatever kind
};
inline constexpr int kSchemaTypes = static_cast<int>(OpType::kGc) + 1;
inline constexpr int kOpTypes = static_cast<int>(OpType::kCollective) + 1;

const char* OpTypeName(OpType type);                          // "forward-compute"
std::optional<OpType> OpTypeFromName(std::string_view name);  // of the schema
// As results name it: both ends of a transfer between stages are one, "forward-pp-comm".
std::string_view KindName(OpType type);
// Its duration is work of its own: not the wait for a peer.
bool IsCompute(OpType type);
bool IsPass(OpType type);              // forward or backward compute, or a segment
bool IsTransfer(OpType type);          // send or receive between stages
bool IsSend(OpType type);              // of a transfer: the side that gives
bool IsDataParallelComm(OpType type);  // collective of a stage's data-parallel ranks, or of whomever

struct StragglerRow {
  uint32_t step = 0;  // index into StragglerRows::steps
  uint16_t dp = 0;
  uint8_t stage = 0;
  OpType type = OpType::kForwardCompute;
  uint16_t sequence = 0;      // 0, 1, ... per step, worker and type
  int16_t global_chunk = -1;  // model chunk * pp + stage; of forward and backward compute, else -1
  int16_t microbatch = -1;
  int8_t chunk = -1;   // model chunk within the stage
  float start = 0;     // s since the first op of the step
  float duration = 0;  // s, of communication with the wait for peers
};
static_assert(sizeof(StragglerRow) == 24);

struct StragglerRows {
  // In pieces, so that growing copies nothing and holds nothing twice.
  std::vector<std::vector<StragglerRow>> pieces;
  std::vector<int64_t> steps;               // in the order in which they first appeared
  std::vector<std::vector<int32_t>> ranks;  // [dp][stage]: the global rank that stands for the worker; -1: no row

  void Add(const StragglerRow& row);
  size_t size() const;
};

// The metadata file beside a trace.
struct StragglerMeta {
  std::string trial_name;
  int64_t run_id = 0;
  int dp = 1, dsp = 1, pp = 1, tp = 1, vpp = 1;
  int64_t world_size = 1;
  std::string day;                 // "2026-11-22"; empty: not told
  std::vector<std::string> hosts;  // of equal shares of the ranks, in their order; empty: not told
};

}  // namespace lockstep::trace
