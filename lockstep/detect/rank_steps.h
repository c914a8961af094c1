// What each rank took beyond the others, step by step: whether chance, as that of sequence lengths, is enough for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lockstep/detect/comm_rounds.h"

namespace lockstep::detect {

class RankSteps {
 public:
  // `rounds` must outlive this.
  explicit RankSteps(const Rounds& rounds);

  // By how many times what chance makes of the sum of the steps since then, as the rank's own differ, or those of most.
  // 0: nothing is known of it.
  double DeviationsOf(int rank, int64_t since_ns) const;

 private:
  // In a step, of the collectives that are told: many, or few. So the former is seen beside the latter.
  struct Taken {
    double beyond_ns = 0, usual_ns = 0;
    bool is_told = false;
  };

  size_t StepAt(int64_t ns) const;
  void Add(const Round& round);
  static size_t Count(std::span<const Taken> steps);
  static Taken SumOf(std::span<const Taken> steps);
  static double VarianceOf(std::span<const Taken> steps);

  const std::vector<int64_t>& ends_ns_;
  absl::flat_hash_map<int, std::vector<Taken>> of_ranks_;  // by step
  double usual_variance_ = 0;
};

}  // namespace lockstep::detect
