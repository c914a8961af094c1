// Replay: when every op of a graph ends, under a scenario.
//
// Each op and lane has a measured duration, each op an ideal one. A scenario says where the measured one counts, and
// where a measured delay precedes the op; it never copies durations. Durations are float (a trace has no more), times
// are double.
//
// Thread rule: const members may run on many threads at once, each with its own scratch. The result does not depend on
// the block size or on the processor: only maxima and sums in a fixed order. Cost: about 1 ns per op and lane for a
// graph with tens of lanes, of which nothing is allocated but the scratch.
//
//   Scenario worker_fixed{{ops, Selection::kAll}, {ops, Selection::kNone}};
//   worker_fixed.durations.Set(op, worker_fixed.durations.AddMask(lanes_without_that_worker));
//   replay.SetTimes(worker_fixed, scratch, times);   // seconds per lane set
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/graph/op_graph.h"

namespace lockstep::graph {

// Picks (op, lane) pairs: of each op none, all, or those lanes that a mask has.
class Selection {
 public:
  static constexpr uint16_t kNone = 0, kAll = 1;

  Selection() = default;
  Selection(size_t ops, uint16_t everywhere) : of_op_(ops, everywhere) {}
  // A mask has a byte per lane, 1 = picked. Returns its name for Set.
  uint16_t AddMask(std::vector<uint8_t> mask) {
    masks_.push_back(std::move(mask));
    return static_cast<uint16_t>(kAll + masks_.size());
  }
  void Set(uint32_t op, uint16_t mask) { of_op_[op] = mask; }
  uint16_t Of(uint32_t op) const { return of_op_[op]; }
  bool Picks(uint32_t op, size_t lane) const {
    return of_op_[op] == kAll || (of_op_[op] != kNone && Mask(of_op_[op])[lane] != 0);
  }
  // Requires a mask made by AddMask.
  const uint8_t* Mask(uint16_t mask) const { return masks_[mask - kAll - 1U].data(); }

 private:
  std::vector<uint16_t> of_op_;
  std::vector<std::vector<uint8_t>> masks_;
};

struct Scenario {
  Selection durations;  // where the measured duration counts; elsewhere the ideal one does
  Selection delays;     // where the measured delay counts; elsewhere there is none
};

// What was measured, [op * lanes + lane], and what is ideal, per op; all in seconds. Must outlive the Replay.
struct Durations {
  std::span<const float> measured;
  std::span<const float> delays;  // may be empty where no scenario picks any
  std::span<const double> ideal;
};

// The ends of a block of whole lane sets: [first_set, last_set).
struct BlockEnds {
  size_t first_set, last_set, first_lane;
  const double* ends;  // row `op` begins at op * stride, with first_lane
  size_t stride;
  double At(uint32_t op, size_t lane) const { return ends[op * stride + lane - first_lane]; }
};

class Replay {
 public:
  // Requires spans of the graph's sizes.
  Replay(const OpGraph& graph, const Durations& durations);

  struct Scratch {
    std::vector<double> ends, rows;
  };
  // times[set] = when the graph's finals have ended in all lanes of the set. On as many threads as scratches.
  void SetTimes(const Scenario& scenario, std::span<Scratch> scratches, std::span<double> times) const;
  void SetTimes(const Scenario& scenario, Scratch& scratch, std::span<double> times) const {
    SetTimes(scenario, {&scratch, 1}, times);
  }
  // The same of several scenarios, times[scenario][set], each carried out only from where it begins to differ from
  // `base`.
  void SetTimesOfEach(const Scenario& base, std::span<const Scenario> scenarios, std::span<Scratch> scratches,
                      std::span<std::vector<double>> times) const;
  // In the order of the lane sets; what a block shows is valid during the call.
  void VisitBlocks(const Scenario& scenario, Scratch& scratch,
                   const std::function<void(const BlockEnds&)>& visit) const;
  // ends[op * lanes + lane].
  void Ends(const Scenario& scenario, Scratch& scratch, std::span<double> ends) const;
  // times[lane] = the time of its set if that lane alone has the measured durations of what `durations` picks (of it,
  // if masked), and all else is ideal. For all lanes together this costs what two scenarios do, because the other lanes
  // of a set do alike and one can stand for them all; which takes sets of two lanes or more that have every op and
  // meet all together. Requires CanReplayLanesAlone.
  bool CanReplayLanesAlone() const;
  void AloneTimes(const Selection& durations, Scratch& scratch, std::span<double> times) const;
  const Durations& durations() const { return durations_; }

 private:
  // Carries some units of a block of lane sets out; what they depend on is in `ends` already. Row `op` of `ends` begins
  // at op * stride, with the block's first lane.
  void RunBlock(size_t block, const Scenario& scenario, std::span<const Unit> units, Scratch& scratch, double* ends,
                size_t stride) const;
  // Into the scratch.
  BlockEnds RunBlock(size_t block, const Scenario& scenario, std::span<const Unit> units, Scratch& scratch) const;
  void TakeTimes(const BlockEnds& block, std::span<double> times) const;
  size_t FirstDifference(const Scenario& a, const Scenario& b) const;  // a unit

  const OpGraph& graph_;
  const Durations durations_;
  std::vector<uint32_t> first_set_;  // of each block of lane sets that is carried out at once, and one past the last
  size_t widest_ = 0;                // lanes of the widest block
};

}  // namespace lockstep::graph
