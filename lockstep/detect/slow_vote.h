// Who slows a job that goes on, by the stacks alone (ByteRobust, SOSP 2025, section 5): in each of some rounds, ten
// seconds apart, the parallel group with the most outliers is flagged; the one that is flagged most often is named.
// Less is asked of a healthy job: nobody is named who is not flagged in more than half of the rounds.
// Pure: the answer is a function of the multiset of rounds. Cost: linear in outliers, and once in ranks.
//
//   SlowVote vote(layout);
//   for (const auto& outliers : rounds) vote.Add(outliers);
//   if (vote.complete()) vote.Leaders();
#pragma once

#include <array>
#include <span>
#include <vector>

#include "lockstep/cluster/layout.h"

namespace lockstep::detect {

class SlowVote {
 public:
  static constexpr int kRounds = 5;

  struct Leader {
    cluster::Dimension dimension;
    std::vector<RankId> ranks;     // of the group
    std::vector<RankId> outliers;  // those of them that were outliers in more than half of the rounds: fewer to evict
    int flagged = 0;               // rounds
  };

  // Requires a valid layout.
  explicit SlowVote(const cluster::Layout& layout, int rounds = kRounds);

  // The ranks whose stacks differed from most, in one round; those that the layout has not are left aside. Of groups
  // with as many outliers the smallest is flagged, equal ones together. A round without outliers flags none.
  void Add(std::span<const int> outliers);
  bool complete() const { return seen_ >= rounds_; }
  // Flagged most often, several if equal; none: no group in more than half of the rounds.
  std::vector<Leader> Leaders() const;

 private:
  static constexpr std::array kVoters = {cluster::Dimension::kTp, cluster::Dimension::kCp, cluster::Dimension::kEp,
                                         cluster::Dimension::kPp, cluster::Dimension::kDp};
  struct Groups {
    cluster::Dimension dimension;
    std::vector<std::vector<RankId>> ranks;  // by group
    std::vector<int> group_of;               // by rank
    std::vector<int> flagged;                // by group
  };

  std::vector<Groups> dimensions_;
  std::vector<int> outlier_in_;  // rounds, by rank
  int rounds_, seen_ = 0;
};

}  // namespace lockstep::detect
