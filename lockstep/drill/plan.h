// Plan: which faults, when. From a schedule (TOML) or from one fault on the command line. Random ranks are drawn from
// the seed, so a plan is the same for the same seed, schedule and number of ranks, on any machine.
//
//   const Ranks ranks{.first = 0, .count = 4};
//   LS_ASSIGN_OR_RETURN(Plan plan, ReadPlan("drill.toml", ranks));  // or "drill.toml:7:1: fault.rank must be ..."
//   DrawRanks(plan, ranks);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/drill/fault.h"

namespace lockstep::drill {

// Those of the node on which the drill runs: it reaches no others. None: beside a coordinator that stands alone.
struct Ranks {
  int first = 0, count = 1;
  bool Has(int rank) const { return rank >= first && rank < first + count; }
};

struct Planned {
  Seconds after;                   // since the drill began; where at_step is set, without meaning
  std::optional<int64_t> at_step;  // as soon as all ranks have finished this step
  Fault fault;
};

struct Plan {
  std::optional<uint64_t> seed;  // nullopt: the schedule names none
  std::vector<Planned> faults;   // in the order of the file
};

// kInvalidArgument: such a fault needs a rank of this node, and there is none.
absl::Status CheckReach(Kind kind, const Ranks& ranks);
absl::StatusOr<Plan> ReadPlan(const std::string& path, const Ranks& ranks);
absl::StatusOr<Plan> ParsePlan(std::string_view text, const std::string& file, const Ranks& ranks);
// Gives every fault that strikes a random rank its rank. Requires a seed.
void DrawRanks(Plan& plan, const Ranks& ranks);
// {seed, faults: [{after_s or at_step, fault, rank, ...}]}
Json ToJson(const Plan& plan);

}  // namespace lockstep::drill
