// What each rank took beyond the others, step by step: whether chance, as that of sequence lengths, is enough for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lockstep/detect/comm_rounds.h"

namespace lockstep::detect {

class RankSteps {
 public:
  explicit RankSteps(const Rounds& rounds);

  // By how many times what chance makes of the sum of the steps since then, as the rank's own differ, or those of the
  // middle rank: the least of that of steps, of two in a row as one, of four, and so on, for steps as they are found
  // may be parts of those in which something happens. Where little tells how steps differ, less. None: of hardly any
  // step is anything told.
  std::optional<double> DeviationsOf(int rank, int64_t since_ns) const;

 private:
  // In a step, of the collectives that are told: many, or few. So the former is seen beside the latter.
  struct Taken {
    double beyond_ns = 0, usual_ns = 0;
    bool is_told = false;
  };
  using Steps = std::vector<Taken>;
  struct Usual {  // of the middle rank
    double variance = 0;
    size_t steps = 0;
  };

  static std::vector<int64_t> EdgesOf(const Rounds& rounds);
  size_t StepAt(int64_t ns) const;
  void Add(const Round& round);
  void CompareWithOthers();
  void FindUsual();
  double Scarcity(size_t steps) const;
  static Steps ToldSince(const Steps& all, size_t first);
  static Steps InPairs(const Steps& steps);
  static double VarianceOf(const Steps& steps);

  std::vector<int64_t> edges_ns_;  // each step begins at one
  absl::flat_hash_map<int, Steps> of_ranks_;
  std::vector<Usual> usual_;  // of steps, of two as one, ...
};

}  // namespace lockstep::detect
