#include "lockstep/detect/slow_vote.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::detect {

SlowVote::SlowVote(const cluster::Layout& layout, int rounds)
    : outlier_in_(static_cast<size_t>(layout.WorldSize())), rounds_(rounds) {
  for (const cluster::Dimension dimension : kVoters) {
    if (layout.Size(dimension) == 1) continue;
    Groups groups{dimension, layout.Groups(dimension), std::vector<int>(outlier_in_.size()), {}};
    groups.flagged.resize(groups.ranks.size());
    for (size_t group = 0; group < groups.ranks.size(); ++group)
      for (const RankId rank : groups.ranks[group])
        groups.group_of[static_cast<size_t>(rank.value())] = static_cast<int>(group);
    dimensions_.push_back(std::move(groups));
  }
}

void SlowVote::Add(std::span<const int> outliers) {
  ++seen_;
  std::vector<size_t> ranks;
  for (const int rank : outliers)
    if (rank >= 0 && static_cast<size_t>(rank) < outlier_in_.size()) ranks.push_back(static_cast<size_t>(rank));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (const size_t rank : ranks) ++outlier_in_[rank];

  std::pair<int, int> best = {0, 0};  // outliers, less ranks
  std::vector<int*> flagged;
  for (Groups& groups : dimensions_) {
    std::vector<int> count(groups.ranks.size());
    for (const size_t rank : ranks) ++count[static_cast<size_t>(groups.group_of[rank])];
    for (size_t group = 0; group < count.size(); ++group) {
      const std::pair<int, int> score = {count[group], -static_cast<int>(groups.ranks[group].size())};
      if (count[group] == 0 || score < best) continue;
      if (score > best) flagged.clear();
      best = score;
      flagged.push_back(&groups.flagged[group]);
    }
  }
  for (int* const rounds : flagged) ++*rounds;
}

std::vector<SlowVote::Leader> SlowVote::Leaders() const {
  int most = seen_ / 2 + 1;
  for (const Groups& groups : dimensions_)
    for (const int flagged : groups.flagged) most = std::max(most, flagged);
  std::vector<Leader> leaders;
  for (const Groups& groups : dimensions_)
    for (size_t group = 0; group < groups.ranks.size(); ++group) {
      if (groups.flagged[group] < most) continue;
      Leader leader{groups.dimension, groups.ranks[group], {}, groups.flagged[group]};
      std::copy_if(leader.ranks.begin(), leader.ranks.end(), std::back_inserter(leader.outliers),
                   [&](RankId rank) { return outlier_in_[static_cast<size_t>(rank.value())] > seen_ / 2; });
      leaders.push_back(std::move(leader));
    }
  return leaders;
}

}  // namespace lockstep::detect
