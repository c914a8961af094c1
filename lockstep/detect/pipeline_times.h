// What the ranks of one pipeline did by themselves, and which of it the job waited for. Of ranks that wait for each
// other in sends and receives as well as in collectives, who holds the job up is told by neither alone.
//
// Clocks of ranks are never compared: who came last is who launched its end the shortest time before the end of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lockstep/detect/transfer_pairs.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

class PipelineTimes {
 public:
  // `ranks` ascending. Log and lanes must outlive it.
  PipelineTimes(const trace::CommLog& log, const Lanes& lanes, std::vector<int> ranks);

  // All that its ranks waited for lies in this time, unless some of it is lost.
  int64_t begin_ns() const { return begin_ns_; }
  int64_t end_ns() const { return end_ns_; }
  // Why nothing can be said of what they did between these times; empty: it can.
  std::string WhyNot(int64_t from_ns, int64_t to_ns) const;

  // By rank, in their order, and by step, of which each ends at one of `ends_ns` and the first begins at the first.
  using BySteps = std::vector<std::vector<int64_t>>;
  BySteps Alone(const std::vector<int64_t>& ends_ns) const;
  // Of that, what lies on the way back from the end: from who waited to the rank that it waited for, as long as that
  // was by itself, and so on. Had any of it taken less, the job would have.
  BySteps WaitedFor(const std::vector<int64_t>& ends_ns) const;

 private:
  struct Waiting {
    int64_t begin_ns, end_ns;
    const trace::CommOp* op;
  };

  void Learn();
  void LearnMeetings();
  void Bound();
  size_t IndexOf(int rank) const;
  bool IsOne(int rank) const;

  const trace::CommLog& log_;
  const Lanes& lanes_;
  std::vector<int> ranks_;
  std::vector<std::vector<Waiting>> waits_;  // by rank, by end
  absl::flat_hash_map<const trace::CommOp*, const trace::CommOp*> waits_for_;
  int64_t begin_ns_ = 0, end_ns_ = 0;
};

}  // namespace lockstep::detect
