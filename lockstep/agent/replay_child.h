// `lockstep replay-ranks`: the ranks of one node in one run of a replay, as a process of its own, so that what kills a
// program kills that one. Not for people: it reads what to run as JSON on its standard input, says how that ended as
// JSON on its standard output, and ends with whoever started it.
//
//   RunChild({self, "replay-ranks"}, {.at_most = ..., .input = InputText(ranks)}, stop)
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/rank_host.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::agent {

struct RanksToReplay {
  struct Rank {
    std::string name;
    RankStart start;
  };
  RankProgram program;
  Seconds deadline;  // from the start of the ranks on
  std::vector<Rank> ranks;
};
struct RanksReplayed {
  std::string trouble{};  // empty: none
  Nanos troubled_at{};    // 0: not
  bool port_taken = false;
  std::string error{};  // the ranks could not be run
};

std::string InputText(const RanksToReplay& ranks);
// DataLoss: it is none.
absl::StatusOr<RanksReplayed> ReadReplayed(const std::string& text);
// The exit status: 2 where the input can't be read.
int ReplayRanksMain();

}  // namespace lockstep::agent
