// What evidence calls communicators, their ops and ranks. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/incident/incident.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

inline constexpr size_t kMostLines = 4;  // of evidence, for each rank

// "DP (7)"; "communicator 7".
std::string NameOf(const trace::Communicator& communicator);
// "all_reduce 12 of DP (7)"; "a send to rank 3 in PP (5)".
std::string NameOf(const trace::CommLog& log, const trace::CommOp& op);
// "ranks 0, 1, 2 and 5 more", of ascending ranks.
std::string RanksText(const std::vector<int>& ranks);
// "rank 2 waits", "ranks 0, 1 wait".
std::string WaitingText(const std::vector<int>& ranks);
// Of a probe: "stacks of ranks 0, 1, and whether they change".
std::string StacksText(const std::vector<int>& ranks);

std::vector<incident::Suspect> Suspects(const std::vector<int>& ranks);

}  // namespace lockstep::detect
