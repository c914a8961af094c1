// Which machines are bad, by replaying the job on groups of them (ByteRobust's dual-phase replay, SOSP'25, 5.1 and
// Alg. 1, as what it is: combinatorial group testing).
//
// Round 1 runs the rows of a grid, round 2 its columns (replay_grid.h); one bad machine is then known. Where two or
// more are, or a link between two machines, or failures come and go, several explanations remain (explanations.h): each
// further round puts the machines that they differ in into groups of their own, filled up with machines that are known
// to be well, and so does not ask the same question again. It ends when one set of machines is bad with the confidence
// that was asked for, when a round would tell nothing new, or at the limit of rounds.
//
// Holds for faults that always reproduce, on every grid with m <= n (by enumeration, group_testing_test.cc): one bad
// machine is named in two rounds, two in at most three, and nobody is named for certain for the fault of a link. For
// those that reproduce with chance p per run, each group runs as often as replay_odds.h says, and the bad machines are
// named, no other, with a chance of at least 1 - error.
//
// Pure and deterministic; groups are run by a GroupRunner: local processes, a simulation, or agents. Cost: see Explain.
//
//   LS_ASSIGN_OR_RETURN(const GroupTestResult result, FindBadMachines(grid, odds, limits, runner));
//   result.verdict.bad;                                                    // {13}
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/detect/explanations.h"
#include "lockstep/detect/replay_grid.h"
#include "lockstep/detect/replay_odds.h"

namespace lockstep::detect {

struct ReplayRound {
  int number = 1;
  std::vector<Machines> groups;  // each machine in one of them at most, so all can run at once
  ReplayRule rule;
};

struct GroupOutcome {
  int runs = 0, failures = 0;
  Seconds took;                       // all runs together
  std::vector<std::string> evidence;  // of its failures, one observation a line
};

class GroupRunner {
 public:
  virtual ~GroupRunner() = default;
  // One outcome per group. An error: the replay itself could not be made, which says nothing about machines.
  virtual absl::StatusOr<std::vector<GroupOutcome>> RunRound(const ReplayRound& round) = 0;
};

struct ReplayLimits {
  int rounds = 6;            // at least 2
  double confidence = 0.99;  // above 0.5, below 1: that the machines named are those that are bad, and no others
  // Who is named has to fail once more, each in a group with machines that are well: two faults that show only
  // sometimes look like one where the row of one meets the column of the other.
  bool confirm = false;

  absl::Status Validate() const;
};

struct SuspectMachine {
  int machine = 0;
  double chance = 0;  // to be bad
};

struct MachineVerdict {
  bool reproduced = false;               // some group is faulty
  Machines bad;                          // the likeliest set
  double confidence = 0;                 // that it is this one
  bool certain = false;                  // the confidence that was asked for was reached, and somebody is named, but
                                         // not everybody: then it may as well be what they all ran
  std::vector<SuspectMachine> suspects;  // the likeliest first: all with a chance of 0.1 % or more
  std::vector<Machines> apart;           // groups that fail though each machine of them is well in others: a link
  Machines evict;                        // none of them can be left out ...
  double evict_confidence = 0;           // ... if with this chance no bad machine shall stay
};

class GroupTesting {
 public:
  // Requires valid odds and limits.
  GroupTesting(const ReplayGrid& grid, const ReplayOdds& odds, const ReplayLimits& limits);

  bool Done() const { return done_; }
  // Requires !Done().
  ReplayRound Next() const;
  // What came of Next(), a row per group of it.
  void Observe(const ReplayRound& round, const std::vector<GroupOutcome>& outcomes);
  MachineVerdict Verdict() const;

 private:
  bool Settled() const;
  double Negligible() const;
  Machines Open(const std::map<int, double>& chances) const;
  Machines Fillers(const std::map<int, double>& chances, size_t wanted) const;
  std::vector<Machines> Separating() const;
  std::vector<Machines> Deal(Machines open, const std::map<int, double>& chances) const;

  ReplayGrid grid_;
  ReplayOdds odds_;
  ReplayLimits limits_;
  int rounds_ = 0;
  std::vector<TestedGroup> tested_;
  Explanations explanations_;
  std::vector<Machines> separating_;  // groups of the next round, from the third on
  Machines confirming_;               // who was named when they were dealt
  bool reproduced_ = false, confirmed_ = false, done_ = false;
};

struct GroupTestResult {
  ReplayGrid grid;
  std::vector<ReplayRound> rounds;
  std::vector<std::vector<GroupOutcome>> outcomes;  // by round and group
  MachineVerdict verdict;
  std::string note{};  // for whoever reads the verdict: what it does not rest on
};

absl::StatusOr<GroupTestResult> FindBadMachines(const ReplayGrid& grid, const ReplayOdds& odds,
                                                const ReplayLimits& limits, GroupRunner& runner);

// Time that machines were taken for, in minutes: each group's size times how long its runs took.
double MachineMinutes(const GroupTestResult& result);

}  // namespace lockstep::detect
