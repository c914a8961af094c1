// A job that was traced, as a graph of its ops with what each of them took: what every reader of traces ends in, and
// what all analyses begin with. The ops of the graph are numbered as in `ops`, its lanes as in `lanes`.
//
// What was measured is parted as in the what-if straggler analysis (OSDI'25): the transfer of a communication counts
// from its last peer's start, and what passed between the end of an op's dependencies and its start is its launch
// delay.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/graph/op_graph.h"
#include "lockstep/trace/data_wait.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::trace {

// Counters: what ranks without peers take is compared with nobody's, so a slow one among them is not seen as one; of
// absent ranks nothing was given, and others may have waited for them.
inline constexpr char kRanksWithoutPeers[] = "ranks_without_peers", kAbsentRanks[] = "absent_ranks";

// Counter: ops that lanes lack, of a trace that fits no schedule once lost rows are put back; so none is.
inline constexpr char kLostRowsLeftOut[] = "lost_rows_left_out";

struct JobOp {
  OpType type;
  int stage;
  int sequence;
  int chunk, microbatch, global_chunk;  // -1: not applicable
  int kind = -1;                        // index into TracedJob::kinds
};

struct JobLane {
  int64_t step;
  int dp;
};

// Where and when a job ran, as far as its files tell.
struct Origin {
  std::string day;                         // the first of the trace, "2026-11-22" in UTC; empty: not told
  std::map<int32_t, std::string> host_of;  // by global rank; none: not told
};

// Of an op: whether its row is put where other rows say that it was.
enum class PutBack : uint8_t {
  kNot,
  kLost,
  kDoubtful,  // there is one, which may be that of another op of its type, and so is taken as lost
};

struct TracedJob {
  std::string name;
  int64_t world_size = 1;
  Origin origin;

  graph::OpGraph graph;
  std::vector<JobOp> ops;
  std::vector<std::string> kinds;     // of ops, as results name them
  std::vector<uint32_t> ideal_class;  // of each op: those of a class would ideally take the same time
  std::vector<JobLane> lanes;
  std::vector<int64_t> steps;  // of the graph's lane sets, ascending
  bool tells_loading = false;  // of data: it has ops of its own. Else it is what passes before a step's first op
  int dp = 1, pp = 1;
  std::vector<std::vector<int32_t>> ranks;  // [dp][stage]
  std::vector<bool> may_be_stage;           // [dp]: of a pipeline that nothing tells of; empty: none

  // [op * lanes + lane], s.
  std::vector<float> starts, durations;
  std::vector<float> transfers;  // of communication; of compute, its duration
  std::vector<float> delays;
  std::vector<PutBack> put_back;  // [op * lanes + lane]; empty: none
  std::vector<float> step_times;  // of each lane set: last end - first start, of what was recorded
  // [stage * lanes + lane], s since the begin of the step: until then its rank was at the step before, which is no
  // delay. Empty: not told.
  std::vector<float> busy_until;
  // [op * lanes + lane], s: so much of a compute passed in waiting for batches of a data service, by its own word.
  // Empty: not told, or none.
  std::vector<float> data_waits;
  // [op * lanes + lane], s: so much of a compute nothing ran, between its kernels or before the first. Empty: not told.
  std::vector<float> idle;
  std::map<std::pair<int, int>, DataSources> data_sources;  // what for; by dp and stage

  // s, by dp and stage: what was added to the times of workers whose clocks were off; of several steps the largest.
  std::map<std::pair<int, int>, double> clock_offsets;
  // By dp and stage: of rows in doubt, and none that tells the clock. They begin each step with the others.
  std::vector<std::pair<int, int>> untold_clocks;

  std::vector<Counter> counters;
};

// Counters of MeasureParts.
inline constexpr std::string_view kNegativeTransfers = "negative_transfers", kNegativeDelays = "negative_delays";

// Of a cell.
inline PutBack PutBackOf(const TracedJob& job, size_t cell) {
  return job.put_back.empty() ? PutBack::kNot : job.put_back[cell];
}
inline bool IsPutBack(const TracedJob& job, size_t cell) { return PutBackOf(job, cell) != PutBack::kNot; }

// When the op began and ended is known by its own rank.
inline bool IsRecorded(const TracedJob& job, size_t cell) { return !job.graph.IsAbsent(cell) && !IsPutBack(job, cell); }

// s; of a cell.
inline float DataWaitOf(const TracedJob& job, size_t cell) {
  return job.data_waits.empty() ? 0.0F : job.data_waits[cell];
}

// s; of a cell.
inline float IdleOf(const TracedJob& job, size_t cell) { return job.idle.empty() ? 0.0F : job.idle[cell]; }

// Of a communication: it came out so far below zero that it was taken as 0, which has a sign then. (One of exactly 0,
// as stamps that are rounded make it, has none.)
inline bool IsMended(const TracedJob& job, size_t cell) {
  return job.transfers[cell] == 0 && std::signbit(job.transfers[cell]);
}

// The first compute of a step, of a pipeline that of its first stage.
inline bool BeginsStep(const JobOp& op) {
  return (op.type == OpType::kForwardCompute || op.type == OpType::kSegment) && op.stage == 0 && op.sequence == 0;
}

// From starts and durations: transfers and delays; counts what had to be mended. The same on any number of threads.
void MeasureParts(TracedJob& job, size_t threads = 1);

}  // namespace lockstep::trace
