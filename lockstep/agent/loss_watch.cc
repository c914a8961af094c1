#include "lockstep/agent/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::agent {

std::vector<control::BadLoss> LossWatch::Take(EpochId epoch, const std::vector<Seen>& seen) {
  if (std::exchange(epoch_, epoch) != epoch) ranks_.clear();
  std::vector<control::BadLoss> told;
  for (const Seen& one : seen) {
    Rank& rank = ranks_[one.rank];
    if (std::isnan(one.loss)) continue;
    if (std::isfinite(one.loss)) {
      if (std::exchange(rank.bad, false)) told.push_back({one.rank, -1, -1, one.step});
      rank.was_finite = true;
      rank.finite_step = std::max(one.step, int64_t{0});
    } else if (rank.was_finite) {
      if (!std::exchange(rank.bad, true)) rank.bad_since = one.step;
      told.push_back({one.rank, rank.finite_step, rank.bad_since, one.step});
    }
  }
  return told;
}

}  // namespace lockstep::agent
