// What the segments of a worker take but for pauses of its host: gaps between the kernels of a few of a lane that are
// long there, while the rest of the lane and the segment itself in most of the worker's steps are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::explain {

class Passes;

class SteadySegments {
 public:
  // Of one data-parallel rank. Asks `passes` for durations and for what is usual, and for nothing else.
  SteadySegments(const Passes& passes, int stage, int dp);

  // s; requires that the op is there.
  double Seconds(uint32_t op, size_t lane) const;
  // What it takes of what is usual, in most of the worker's steps.
  double InMostSteps(uint32_t op) const { return of_op_.at(op); }

 private:
  void FindUsuallyIdle(uint32_t op, int dp);
  double Idle(uint32_t op, size_t lane) const;  // s
  void FindPaused(const std::vector<uint32_t>& ops, size_t lane);

  const Passes& passes_;
  std::unordered_map<uint32_t, double> of_op_, usually_idle_;  // the latter in most of the worker's steps, s
  std::unordered_map<size_t, double> paused_;                  // by cell: s without the pause
};

}  // namespace lockstep::explain
