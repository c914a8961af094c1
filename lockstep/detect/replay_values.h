// What the ranks of a replay report of their gradients, and which of them differs. Machines that are well compute the
// same bits, so of the values that must agree the rarer ones are wrong; where two are as frequent as each other nobody
// knows which, and both differ.
//
//   ReplayVotes votes;
//   for (const ReplayValue& value : all groups) votes.Add(value);
//   votes.Objection(value)   // "local gradient 0 of step 3 differs from 5 of 6"
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::detect {

struct ReplayValue {
  int64_t step = 0;
  std::string name;
  int rank = 0;       // in its group
  int ranks = 0;      // of the group
  std::string scope;  // "rank", "group", "everywhere": where others must have the same
  std::string digest;
  int64_t not_finite = 0;
};

// The report of one rank, as python/lockstep/_replay.py writes it; a last line that was cut off is left out. DataLoss:
// a line that is none of its.
absl::StatusOr<std::vector<ReplayValue>> ParseReplayReport(std::string_view text, int rank, int ranks);

class ReplayVotes {
 public:
  void Add(const ReplayValue& value);
  // What is wrong with a value that was added; nullopt: nothing that one can tell.
  std::optional<std::string> Objection(const ReplayValue& value) const;

 private:
  // step, name, rank and ranks; -1: any
  using Key = std::tuple<int64_t, std::string, int, int>;
  static Key KeyOf(const ReplayValue& value);

  std::map<Key, std::map<std::string, int>> votes_;  // by digest
};

}  // namespace lockstep::detect
