// When the ops of a straggler job's lanes began and ended, as far as rows tell.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

struct RecordedTimes {
  static constexpr uint32_t kNone = ~0U;

  std::span<const JobOp> ops;  // by stage, then by type, then by sequence
  std::span<const JobLane> lanes;
  std::span<const uint32_t> first_lane;  // of each step, and one past the last
  std::vector<float> starts, ends;       // [op * lanes + lane], s; NaN: no row, or one in doubt
  std::vector<uint8_t> in_doubt;         // [op * lanes + lane] = 1: the row may be of another op. Empty: none

  size_t steps() const { return first_lane.size() - 1; }
  size_t Cell(uint32_t op, uint32_t lane) const { return op * lanes.size() + lane; }
  bool Has(uint32_t op, uint32_t lane) const { return !std::isnan(starts[Cell(op, lane)]); }
  bool IsInDoubt(uint32_t op, uint32_t lane) const { return !in_doubt.empty() && in_doubt[Cell(op, lane)] != 0; }
  float Start(uint32_t op, uint32_t lane) const { return starts[Cell(op, lane)]; }
  float End(uint32_t op, uint32_t lane) const { return ends[Cell(op, lane)]; }
};

// The ops of a stage, or of one type of it: [first, last).
struct OpSpan {
  uint32_t first = 0, last = 0;
  uint32_t size() const { return last - first; }
};

// Where the ops of each stage and type are.
class OpIndex {
 public:
  explicit OpIndex(std::span<const JobOp> ops) {
    for (uint32_t op = 0; op < ops.size(); ++op) {
      const auto stage = static_cast<size_t>(ops[op].stage);
      if (stages_.size() <= stage) {
        stages_.resize(stage + 1);
        places_.resize((stage + 1) * kOpTypes);
      }
      for (OpSpan* span : {&stages_[stage], &places_[Place(ops[op])]}) {
        if (span->size() == 0) span->first = op;
        span->last = op + 1;
      }
    }
  }

  static size_t Place(const JobOp& op) {
    return static_cast<size_t>(op.stage) * kOpTypes + static_cast<size_t>(op.type);
  }
  size_t places() const { return places_.size(); }
  int stages() const { return static_cast<int>(stages_.size()); }
  OpSpan OfStage(int stage) const { return stages_[static_cast<size_t>(stage)]; }
  OpSpan Of(size_t place) const { return places_[place]; }
  OpSpan Of(OpType type, int stage) const {
    return places_[static_cast<size_t>(stage) * kOpTypes + static_cast<size_t>(type)];
  }

 private:
  std::vector<OpSpan> stages_, places_;
};

}  // namespace lockstep::trace
