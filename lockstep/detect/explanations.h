// What may be bad, given which groups of machines failed when they replayed a job together, and how likely each is.
//
// An explanation is a set of bad machines, of groups with a fault that only shows there ("apart": a link between two of
// its machines, say), and of failures that were false alarms, which together account for each group whose failures are
// likelier with a bad machine than without. Only minimal ones are looked for. Bayes' rule weighs them:
//
//   weight = (1/z)^machines * (1/100n)^apart * product over groups g of P[failures of g | b of its machines are bad]
//   P[a run fails | b bad] = 1 - (1 - q) (1 - p)^b
//
// so one machine in z is bad beforehand, and one link in a hundred such jobs (n: groups of the first round). p and q
// are held a millionth away from 0 and 1: what can't be under the assumptions may be, only rarely.
//
// Pure and deterministic: ties go to the lower numbers. Cost: a branch-and-bound over explanations, cut off below a
// millionth of the best's weight and after kMostNodes; 10,000 machines with one or two faults take milliseconds.
#pragma once

#include <vector>

#include "lockstep/detect/replay_grid.h"
#include "lockstep/detect/replay_odds.h"

namespace lockstep::detect {

struct TestedGroup {
  Machines machines;
  int runs = 1;
  int failures = 0;
};

struct Explanation {
  Machines bad;
  std::vector<size_t> apart;         // groups with a fault of their own
  std::vector<size_t> false_alarms;  // groups whose failures mean nothing
  double chance = 0;
};

struct Explanations {
  std::vector<Explanation> list;  // the likeliest first; chances sum to 1; never empty
  bool complete = true;           // false: there are too many to look at
};
inline constexpr int kMostNodes = 50'000;

// `first_groups`: how many of the groups belong to the first round.
Explanations Explain(int machines, size_t first_groups, const std::vector<TestedGroup>& groups, const ReplayOdds& odds);

}  // namespace lockstep::detect
