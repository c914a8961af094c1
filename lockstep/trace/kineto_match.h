// Which communications of different ranks are the same one, and by how much the ranks' clocks differ.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/clocks.h"
#include "lockstep/trace/kineto_steps.h"

namespace lockstep::trace {

// Both must outlive it.
class KinetoMatch {
 public:
  // One communication on the ranks that have it: (rank, index of the communication in its role's form).
  using Members = std::vector<std::pair<size_t, size_t>>;

  KinetoMatch(std::vector<KinetoRank>& ranks, const KinetoSteps& steps);

  const DeviceOp& OpOf(size_t step, size_t rank, size_t i) const {
    return ranks_[rank].ops[steps_.ops[step][rank].collectives[i]];
  }
  // Collectives by group and order within the step, or by the sequence number where it is told and the order of those
  // that share it; without a group: of all ranks. Transfers by their two ends and the order between them; exchanges
  // with several ranks by group and order, and untold transfers where all ranks meet in them.
  std::vector<Members> Candidates(size_t step) const;
  // A communication ends on all its members together, and none of them came when it was over.
  bool EndTogether(size_t step, const Members& members) const;
  // Shifts the times of each rank by its offset. kInvalidArgument: files of different runs.
  absl::StatusOr<std::vector<ClockOffset>> FitClocks();
  // By clocks that were fitted: whether all ranks that have untold transfers (untold_transfers.h) leave the n-th of
  // them together. It is then an exchange of them all: what stages of a pipeline send is for one other.
  void MatchUntold();
  // Of a rank, in all steps: how many nobody is known to have met it in.
  uint64_t UntoldTransfers(size_t rank) const;

 private:
  const Collective& CollectiveOf(size_t step, size_t rank, size_t i) const {
    return ranks_[rank].collectives[OpOf(step, rank, i).collective];
  }
  bool SameName(size_t step, const Members& members) const;

  std::vector<KinetoRank>& ranks_;
  const KinetoSteps& steps_;
  std::vector<std::vector<size_t>> group_;  // [rank][index of its group]: the same number for the same group
  bool untold_meet_ = false;
};

}  // namespace lockstep::trace
