// What the ranks of a replay report of their gradients, and in which runs it is wrong. Machines that are well compute
// the same bits, so of the values that must agree the rarer ones are wrong. What is wrong spreads: the runs that differ
// in the first step in which any does are taken out before the others are looked at again. Where in the end two values
// are as frequent as each other, nobody knows which is right, and both runs fail.
//
//   ReplayVotes votes;
//   votes.Judge({{...}, {...}})   // {{}, {{.rank = 1, .text = "local gradient 0 of step 3 differs from 5 of 6"}}}
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

struct Objection {
  int rank = 0;  // in its group
  std::string text;
};

class ReplayVotes {
 public:
  // Of each run, given by its values, what is wrong with it: at its first step with an objection, none if it is well.
  // Runs judged before have a vote too, but for those that were taken out.
  std::vector<std::vector<Objection>> Judge(const std::vector<std::vector<ReplayValue>>& runs);

 private:
  enum class Standing { kRule, kTie, kWrong };
  // step, name, rank and ranks; -1: any
  using Key = std::tuple<int64_t, std::string, int, int>;
  static Key KeyOf(const ReplayValue& value);
  void Count(const std::vector<ReplayValue>& run, int votes);
  Standing StandingOf(const ReplayValue& value) const;
  std::string Text(const ReplayValue& value) const;
  std::vector<Objection> Objections(const std::vector<ReplayValue>& run, int64_t step, Standing standing) const;
  std::optional<int64_t> FirstStep(const std::vector<ReplayValue>& run, Standing standing) const;

  std::map<Key, std::map<std::string, int>> votes_;  // by digest
};

}  // namespace lockstep::detect
