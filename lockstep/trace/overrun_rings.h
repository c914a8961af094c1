// Have rings of Flight Recorder overwritten ops that ranks are in? A host that runs further ahead of its device than
// the ring is long has done so: of the dump, which begins above record 0 and lacks none in between, nothing has ended.
// Such is also one of what is under way alone; but rings of a job are of one length, and full where they were
// overwritten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "lockstep/base/json_at.h"

namespace lockstep::trace {

// Of the records of a dump, at least one: some in between are left out.
bool HasGaps(const std::set<int64_t>& records);

class OverrunRings {
 public:
  // `records`: what the dump of a rank has. `none_ended`: of what it tells.
  void Take(int rank, const Json& dump, const std::set<int64_t>& records, bool none_ended);
  // The ranks of which ops may be overwritten that have not ended.
  std::set<int> Ranks() const;

 private:
  std::set<int> open_;          // ranks whose dumps may be such
  size_t longest_ = 0;          // of all dumps
  size_t shortest_ = SIZE_MAX;  // of those that begin above record 0
  bool lacks_ = false;          // one has gaps: what has ended is left out
};

}  // namespace lockstep::trace
