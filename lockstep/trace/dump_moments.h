// Dumps of ranks that are not of one moment: those that an earlier incident left, or those of a job that went on from
// one dump to the next. A collective that needs all its members ends on none before each of them has launched it, by
// its own counters; and all ranks are in the same default group. Cost: linear in ops; where dumps are apart, quadratic
// in a communicator.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

struct DumpMoment {
  int64_t written_ns = -1;                  // wall time
  int64_t dumped_ns = -1;                   // the same, as the dump tells itself; -1: not told
  int64_t newest_ns = -1;                   // what the rank launched last, wall time; -1: not told
  const std::vector<int>* world = nullptr;  // the default group's ranks, ascending; each list once; null: not told
};

// When a dump of torch's Flight Recorder was written, as it tells itself. The watchdog has retired what ended before
// the last tenth of a second; when the rest began and ended the dump saw, at that moment. What it tells to have been
// known or launched later than this shows that an earlier dump had noted it.
class ToldMoment {
 public:
  void Take(const Json& entry);
  int64_t Ns() const { return seen_ns_ < before_ns_ ? -1 : seen_ns_; }  // -1: not told

 private:
  int64_t seen_ns_ = -1, before_ns_ = -1;  // by a dump; what is older than the dump
};

struct DumpsApart {
  std::set<int> ranks;  // that were behind what others tell
  std::set<int> old;    // of which the dump is far older than one that it does not go with
  std::string why;      // of one of them; empty: all dumps may be of one moment
};

// Of a function: no rank ends it before all have launched it, and each brings the same amount.
bool NeedsAll(const std::string& function);

// `moments`: by rank, of all that reported.
DumpsApart FindApart(const CommLog& log, const std::map<int, DumpMoment>& moments);

}  // namespace lockstep::trace
