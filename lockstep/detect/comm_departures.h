// Which rank launched other collectives than ranks like it? Ranks of a communicator that have launched the same between
// each two of its collectives are alike, tensor or data parallel ones for instance. Where they part, those that the
// fewer go with have left collectives out or added some; of as many, those that did not do what all had done before.
// There is no limit on how many: what follows a departure is not compared.
//
// A collective counts by its function and by the description and size of its communicator; sends and receives don't.
// Pure. Cost: linear in the communicators' ops, times the communicators of a rank.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

struct Departure {
  int rank = -1;
  std::vector<int> others;  // like it until then, and alike in what they did then
  // Of a communicator, the ops of the rank between which it was; null: it has not launched the second.
  const trace::CommOp *from = nullptr, *to = nullptr;
  // One of each kind of which it launched another number than they, and how many more; less than 0: fewer.
  std::vector<std::pair<const trace::CommOp*, int>> more;
};

// The first of each of `ranks` that has one, by rank. `log` must outlive what comes back.
std::vector<Departure> FindDepartures(const trace::CommLog& log, const std::set<int>& ranks);

}  // namespace lockstep::detect
