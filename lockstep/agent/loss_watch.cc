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
    if (std::isnan(one.loss)) continue;
    if (std::isfinite(one.loss)) {
      if (std::exchange(rank.bad, false)) told.push_back({one.rank, -1, -1, one.step});
      if (!rank.finite) rank.first_finite = one.step;
      rank.finite = {epoch, std::max(one.step, int64_t{0})};
    } else if (rank.finite && one.step >= rank.first_finite) {
      if (!std::exchange(rank.bad, true)) rank.bad_since = one.step;
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
