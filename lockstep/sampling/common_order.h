// One random order of the universe per lap; a job takes its own items of it, from where the lap is when the job begins
// around to there again. Where that is depends on time alone, so the job's order is uniform: a rotation and a filter of
// a uniform order are uniform.
#pragma once

#include "lockstep/sampling/laps.h"
#include "lockstep/sampling/order_sampler.h"

namespace lockstep::sampling {

class CommonOrders final : public Orders {
 public:
  explicit CommonOrders(const SamplerOptions& options) : options_(options), laps_(options.universe) {}
  std::vector<Item> Make(const EpochStart& start) override;
  void Leave(int job) override { laps_.Leave(job); }
  uint64_t LastLap() const override { return laps_.last(); }
  void BeginBehind(uint64_t lap) override { laps_.BeginBehind(lap); }

 private:
  SamplerOptions options_;
  Laps laps_;
};

}  // namespace lockstep::sampling
