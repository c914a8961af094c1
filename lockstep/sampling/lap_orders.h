// Orders by laps: one random order of the universe per lap; a job takes its own items of it, from where the lap is when
// the job begins around to there again, or, if laps are paced, as far as the lap gets meanwhile (laps.h, stream.h).
// That depends on time alone, so the job's order is uniform: a rotation and a filter of a uniform order are uniform.
#pragma once

#include "lockstep/sampling/laps.h"
#include "lockstep/sampling/order_sampler.h"

namespace lockstep::sampling {

class LapOrders final : public Orders {
 public:
  LapOrders(const SamplerOptions& options, bool paced) : options_(options), laps_(options.universe) {
    laps_.SetPaced(paced);
  }
  void Announce(int job, std::span<const Item> items, double rate) override;
  std::vector<Item> Make(const EpochStart& start) override;
  void Leave(int job) override { laps_.Leave(static_cast<uint64_t>(job)); }

 private:
  SamplerOptions options_;
  Laps laps_;
};

}  // namespace lockstep::sampling
