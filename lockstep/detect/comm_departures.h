// Which rank launched other collectives than ranks like it? Ranks of a communicator that have launched the same between
// each two of its collectives are alike, tensor or data parallel ones for instance. Where they part, what more than
// half of all that are alike did is usual, or else what all had done before: the others have left collectives out or
// added some. Those that have not come so far count too: who leaves something out comes first. There is no limit on how
// many it is; what follows a departure is not compared, unless it is made good with the communicator's next op.
//
// A collective counts by its function and by the description and size of its communicator; sends and receives don't.
// Pure. Cost: about linear in ops, whatever their numbers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

struct Departure {
  // Ranks like it until then.
  struct Others {
    std::vector<int> ranks;                  // ascending: alike in what they did then, too
    std::map<int, const trace::CommOp*> to;  // of those and of those that have not come so far: null
  };

  int rank = -1;
  std::shared_ptr<const Others> others;  // shared: one list for all that part from them there
  // Of a communicator, the ops of the rank between which it was; null: it has not launched the second.
  const trace::CommOp *from = nullptr, *to = nullptr;
  // One of each kind of which it launched another number than they, and how many more; less than 0: fewer. `to` counts
  // where theirs is of another kind.
  std::vector<std::pair<const trace::CommOp*, int>> more;
  // By the op behind `to` it had launched as many of each kind as they: it did so in another order.
  bool made_good = false;
};

// By rank; of each in the order in which it launched what ends them.
using Departures = std::map<int, std::vector<Departure>>;

// `log` must outlive what comes back.
Departures FindDepartures(const trace::CommLog& log);

// Of a log, which must outlive it: found when first asked for, for most logs need none.
class LazyDepartures {
 public:
  explicit LazyDepartures(const trace::CommLog& log) : log_(log) {}

  const Departures& all() const;
  // Ranks of which one's end has not ended, ascending: what all have gone past is not why they wait.
  std::vector<int> Open() const;
  // Of those among `ranks`, for evidence: kMostLines of them.
  std::vector<std::string> TextsOf(const std::vector<int>& ranks) const;

 private:
  const Departure* OpenOf(int rank) const;

  const trace::CommLog& log_;
  mutable std::optional<Departures> all_;
};

// "rank 2 launched between all_reduce 2 of world (4) and 3 6 all_reduce of TP (1) fewer than ranks 0, 1, ..."
std::string TextOf(const trace::CommLog& log, const Departure& departure);

}  // namespace lockstep::detect
