// Dumps still tell of process groups that were destroyed, whose names newer ones were given: what was launched in them
// is no part of what ranks wait for.
//
// Names are given anew once the default group, "0", is destroyed, with numbers from 1 on. The ids by which a process
// counts its groups go on, and the default group has the first.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

class DestroyedGroups {
 public:
  // Takes the ops of destroyed groups out of a rank's, the last ids.size() of the log; ids: of their groups.
  void Drop(int rank, const std::vector<int64_t>& ids, CommLog& log);
  // Whether a newer group of the rank has this communicator's name and ranks.
  bool IsDestroyed(uint32_t communicator, int rank, int64_t id) const;
  // When all ranks have told. All are there when groups are made anew: whose last launch was before any began with the
  // new one has launched nothing in that. Times of hosts differ: they are not asked about a rank that launched in as
  // many as any.
  void DropLeftBehind(CommLog& log);

  uint64_t dropped() const { return dropped_; }

 private:
  // What a rank launched in the newest group of a name and ranks, and before in others: wall times.
  struct Use {
    int64_t id = -1;  // as the process counts groups
    int groups = 0;   // of that name and ranks in which it is known to have launched something
    int64_t first_ns = INT64_MAX, last_ns = -1, before_ns = -1;
  };

  std::map<std::pair<uint32_t, int>, Use> uses_;  // by communicator and rank
  uint64_t dropped_ = 0;
};

}  // namespace lockstep::trace
