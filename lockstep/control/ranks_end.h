// When ranks may have ended on a node whose agent is out of reach: of several such nodes, that tells for which one the
// others stand, or have lost their connections. With the agent, where the machine went down; where the agent alone
// died they train on, and the starter ends them kWithoutAgent later. One that is only cut off does not lose its
// starter: it is silent, as a machine without power is. Pure.
//
//   std::ranges::min_element(lost, {}, [&](const Unheard& one) { return Apart(RanksEnd(one, stood), stood); });
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep::control {

// A starter that has had no agent for so long ends its workers.
inline constexpr Seconds kWithoutAgent{60};

constexpr Nanos Apart(Nanos one, Nanos other) { return one < other ? other - one : one - other; }
// An agent that is out of reach.
struct Unheard {
  Nanos since;          // its connection was closed then, or
  bool silent = false;  // nothing was heard of it since
};

// On its node, if that is the cause of what happened at `when`.
Nanos RanksEnd(const Unheard& lost, Nanos when);
// It may be: what others notice of the end of ranks comes within a long step of it.
bool EndNear(const Unheard& lost, Nanos when);
// Its ranks have stepped with the others since, and were not ended since: a step of the job ended then.
bool WentOn(const Unheard& lost, Nanos step_end);

// Why a node was taken for that cause: "; of the nodes whose agents are out of reach (b, c) it was lost nearest to when
// the job stood"; empty: there is no other one.
std::string WhyChosen(const std::vector<std::string>& among, const Unheard& lost, Nanos when, const std::string& what);

}  // namespace lockstep::control
