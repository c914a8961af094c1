// Have rings of Flight Recorder overwritten ops that ranks are in? A host that runs further ahead of its device than
// the ring is long has done so. The rank's own counters show it, where they tell of more under way in a group than the
// dump does. Where they don't tell, it may be so of a dump that begins above record 0 and lacks none in between, of
// which nothing has ended. Such is also one of what is under way alone; but rings of a job are of one length, and full
// where they were overwritten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "lockstep/base/json_at.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

// Of the records of a dump, at least one: some in between are left out.
bool HasGaps(const std::set<int64_t>& records);

class OverrunRings {
 public:
  // `records`: what the dump of a rank has. `none_ended`: of what it tells.
  void Take(int rank, const Json& dump, const std::set<int64_t>& records, bool none_ended);
  // By the counters of a rank, something is under way that was launched before all that it tells of the group.
  void LacksUnderWay(int rank) { lack_.insert(rank); }
  // The ranks of which ops may be overwritten that have not ended. `log`: of all dumps, with the counters of groups
  // without transfers.
  std::set<int> Ranks(const CommLog& log) const;

 private:
  std::set<int> begin_above_0_;
  std::set<int> open_;          // of them, whose dumps may be such
  std::set<int> lack_;          // whose counters tell so, whatever their dumps begin with
  size_t longest_ = 0;          // of all dumps
  size_t shortest_ = SIZE_MAX;  // of those that begin above record 0
  bool lacks_ = false;          // one has gaps: what has ended is left out
};

}  // namespace lockstep::trace
