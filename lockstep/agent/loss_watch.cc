#include "lockstep/agent/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::agent {

std::vector<control::BadLoss> LossWatch::Take(EpochId epoch, const std::vector<Seen>& seen) {
  if (std::exchange(epoch_, epoch) != epoch)
    for (auto& [number, rank] : ranks_) rank.bad = false;
  std::vector<control::BadLoss> told;
  for (const Seen& one : seen) {
    Rank& rank = ranks_[one.rank];
    const int64_t newest =
        std::isfinite(one.loss) ? std::max({one.step, one.newest_finite, int64_t{0}}) : one.newest_finite;
    if (newest >= 0) {
      if (!rank.finite) rank.first_finite = one.first_finite >= 0 ? one.first_finite : newest;
      rank.finite = {epoch, newest};
    }
    if (std::isnan(one.loss)) continue;
    if (std::isfinite(one.loss)) {
      if (std::exchange(rank.bad, false)) told.push_back({one.rank, -1, -1, one.step});
    } else if (rank.finite && one.step >= rank.first_finite) {
      const bool was_well_meanwhile = newest >= rank.bad_since;
      if (!std::exchange(rank.bad, true) || was_well_meanwhile) rank.bad_since = std::max(one.step, newest + 1);
      told.push_back({one.rank, rank.finite->step, rank.bad_since, one.step, rank.finite->epoch});
    }
  }
  return told;
}

std::optional<control::CheckpointId> LossWatch::BadFrom() const {
  std::optional<control::CheckpointId> first;
  for (const auto& [number, rank] : ranks_)
    if (rank.bad && (!first || rank.finite < first)) first = rank.finite;
  return first;
}

}  // namespace lockstep::agent
