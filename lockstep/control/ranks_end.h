// When ranks may have ended on a node whose agent is out of reach: of several such nodes, that tells for which one the
// others stand, or have lost their connections. With the agent, where the machine went down; where the agent alone
// died they train on, and the starter ends them kWithoutAgent later. Pure.
//
//   std::ranges::min_element(lost, {}, [&](Nanos since) { return Apart(RanksEnd(since, stood), stood); });
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep::control {

// A starter that has had no agent for so long ends its workers.
inline constexpr Seconds kWithoutAgent{60};

constexpr Nanos Apart(Nanos one, Nanos other) { return one < other ? other - one : one - other; }
// On a node whose agent is lost since then, if it is the cause of what happened at `when`.
Nanos RanksEnd(Nanos lost, Nanos when);
// It may be: what others notice of the end of ranks comes within a long step of it.
bool EndNear(Nanos lost, Nanos when);

// Why a node was taken for that cause: "; of the nodes whose agents are out of reach (b, c) it was lost nearest to when
// the job stood"; empty: there is no other one.
std::string WhyChosen(const std::vector<std::string>& among, Nanos lost, Nanos when, const std::string& what);

}  // namespace lockstep::control
