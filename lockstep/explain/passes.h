// The forward and backward computes of a job, each relative to what its stage usually takes.
//
//   usual(op)       = lower median over data-parallel ranks of the median over steps and microbatches of durations, by
//   pass,
//                     stage and model chunk, each divided by its step's pace: what a healthy rank takes as long as
//                     no more than half of them are slow
//   pace(step)      = median over stages and passes of what a healthy rank takes in the step (the lower median over
//                     data-parallel ranks), relative to the median over steps: 1.5 where all ranks compute half as long
//                     again, as with longer sequences, a larger batch or a lower clock. Of two medians the one nearer
//                     to 1, and 1 between them: what only half of the stages do is no pace. 1 throughout where no step
//                     is 3 % off
//   relative(op, l) = duration / (usual * pace)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/explain/remedy.h"
#include "lockstep/explain/steady_segments.h"

namespace lockstep::explain {

inline constexpr int kPasses = 2;  // forward, backward; a job of segments has the first alone

class Passes {
 public:
  Passes(const trace::TracedJob& job, const Times& times, size_t threads);
  // These durations are no longer what they were.
  void Update(const CellTimes& changed);

  const trace::TracedJob& job() const { return job_; }
  const Times& times() const { return times_; }
  bool HasPass(int pass) const;
  const char* Name(int pass) const;  // "forward"; of segments "compute"
  bool OfSegments() const { return segments_; }
  const std::vector<uint32_t>& Ops(int pass, int stage) const { return ops_[At(pass)][At(stage)]; }
  const std::vector<size_t>& LanesOf(int dp) const { return lanes_of_[At(dp)]; }
  size_t microbatches() const { return microbatches_; }
  bool Has(uint32_t op, size_t lane) const { return !job_.graph.IsAbsent(job_.graph.Cell(op, lane)); }
  double Duration(uint32_t op, size_t lane) const {
    return static_cast<double>(times_.durations[job_.graph.Cell(op, lane)]);
  }
  double Relative(uint32_t op, size_t lane) const { return usual_[op] == 0 ? 1 : Duration(op, lane) / Usual(op, lane); }

  // Median over microbatches of relative durations in a lane; of segments, what all took relative to what is usual, but
  // for pauses (SteadySegments).
  double InLane(int pass, int stage, size_t lane) const { return in_lane_[At(pass)][At(stage)][lane]; }
  // Of segments.
  const SteadySegments& Steady(int stage, int dp) const { return *steady_[At(stage)][At(dp)]; }
  // The compute of the same chunk and microbatch in another pass, or on another stage; of segments, one of the same
  // microbatch.
  std::optional<uint32_t> Same(uint32_t op, int pass, int stage) const;
  double Usual(uint32_t op, size_t lane) const { return usual_[op] * pace_[lane]; }  // s
  double Pace(size_t lane) const { return pace_[lane]; }                             // of its step
  // Seconds of one microbatch on a stage, all chunks; of segments, of all. At a pace of 1.
  double Usual(int pass, int stage) const { return of_stage_[At(pass)][At(stage)]; }

 private:
  static size_t At(int index) { return static_cast<size_t>(index); }
  size_t PlaceOf(int pass, int stage, const trace::JobOp& op) const {
    return ((At(pass) * At(job_.pp) + At(stage)) * chunks_ + (segments_ ? 0 : At(op.chunk))) * microbatches_ +
           At(op.microbatch);
  }
  // Anew, of some places: pass * stages + stage.
  void Measure(const std::vector<size_t>& places);
  void FindUsual(size_t pass, size_t stage);
  void FindInLane(size_t pass, size_t stage);
  void FindInLaneOfSegments(size_t pass, size_t stage);
  size_t SetOf(size_t lane) const;
  // [step]: what a healthy rank takes in it, relative to what is usual.
  std::vector<double> HealthyBySet(size_t pass, size_t stage) const;
  // False: it never changes.
  bool FindPace();

  const trace::TracedJob& job_;
  const Times& times_;
  const size_t threads_;
  std::array<std::vector<std::vector<uint32_t>>, kPasses> ops_;  // [pass][stage]
  size_t chunks_ = 0, microbatches_ = 0;                         // of a stage
  std::vector<std::optional<uint32_t>> by_place_;                // [PlaceOf(...)]
  std::vector<std::vector<size_t>> lanes_of_;                    // [dp]
  std::vector<double> usual_;                                    // [op]; 0 for other ops
  std::vector<double> pace_;                                     // [lane]
  std::array<std::vector<double>, kPasses> of_stage_;            // [pass][stage]
  std::array<std::vector<std::vector<double>>, kPasses> in_lane_;
  bool segments_ = false;
  std::vector<std::vector<std::optional<SteadySegments>>> steady_;  // [stage][dp], of segments
};

inline int PassOf(trace::OpType type) { return type == trace::OpType::kBackwardCompute ? 1 : 0; }  // requires IsPass

}  // namespace lockstep::explain
