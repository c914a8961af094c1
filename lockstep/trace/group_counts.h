// The counters that a process keeps of its groups (pg_status in a dump of Flight Recorder), beside what its dump has of
// them. A counter is the number of the last collective or transfer, whichever that was: of which kind it is, the
// numbers of the other kind may tell.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "lockstep/base/json_at.h"

namespace lockstep::trace {

class GroupCounts {
 public:
  GroupCounts() = default;
  // `status`: pg_status, which must outlive it.
  explicit GroupCounts(const Json& status) : status_(&status) {}

  // An entry of a group: both of its numbers.
  void Take(int64_t group, int64_t collective, int64_t transfer);
  // The last collective, or transfer, that ended. Null: not told.
  std::optional<int64_t> Ended(int64_t group, bool transfer) const;

  // Of a group's counters. Numbers begin at 1, and torch says -1 of none yet. -1: not told.
  static int64_t NumberAt(const Json& counts, const char* key);

 private:
  struct Newest {
    int64_t collective = 0, transfer = 0;
  };

  const Json* status_ = nullptr;
  std::map<int64_t, Newest> newest_;  // that are told, by group
};

}  // namespace lockstep::trace
