// Which simulated machines have ranks that run, and what these have in common, so that one that starts need not be
// compared with each of the others. Only the simulated cluster includes this.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/control/link.h"

namespace lockstep::control {

class Running {
 public:
  struct Ranks {
    EpochId epoch;
    HeldAs place;
    std::optional<CheckpointId> restore;
  };

  // nullopt: none of its ranks runs.
  void Set(int machine, const std::optional<Ranks>& ranks) {
    const auto index = static_cast<size_t>(machine);
    if (known_.size() <= index) known_.resize(index + 1);
    if (known_[index]) Add(*known_[index], -1);
    if (ranks) Add(*ranks, 1);
    known_[index] = ranks;
  }

  int machines() const { return machines_; }
  // Some machine that runs counts itself to a world of so many nodes.
  bool HasWorldOf(int nodes) const { return sizes_.contains(nodes); }
  bool AreOf(EpochId epoch) const { return Count(epochs_, epoch) == machines_; }
  // Those that run are of one world and began where these would, and none of them has their number.
  bool LeaveRoomFor(const Ranks& ranks) const {
    return Count(sizes_, ranks.place.nodes) == machines_ && Count(restores_, ranks.restore) == machines_ &&
           Count(numbers_, ranks.place.node) == 0;
  }

 private:
  template <typename Map, typename Key>
  static int Count(const Map& counts, const Key& key) {
    const auto found = counts.find(key);
    return found == counts.end() ? 0 : found->second;
  }
  template <typename Map, typename Key>
  static void Change(Map& counts, const Key& key, int by) {
    const auto known = counts.try_emplace(key, 0).first;
    if ((known->second += by) == 0) counts.erase(known);
  }
  void Add(const Ranks& ranks, int by) {
    machines_ += by;
    Change(epochs_, ranks.epoch, by);
    Change(sizes_, ranks.place.nodes, by);
    Change(numbers_, ranks.place.node, by);
    Change(restores_, ranks.restore, by);
  }

  std::vector<std::optional<Ranks>> known_;  // by machine
  int machines_ = 0;
  std::map<EpochId, int> epochs_;
  std::map<int, int> sizes_;
  std::unordered_map<int, int> numbers_;
  std::map<std::optional<CheckpointId>, int> restores_;
};

}  // namespace lockstep::control
