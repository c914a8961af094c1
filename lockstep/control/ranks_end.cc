#include "lockstep/control/ranks_end.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep::control {
namespace {

// Between the end of ranks and what is heard of it: others were in a long step, or took their time to leave.
constexpr Seconds kNear{10};

bool AreEndedByStarter(Nanos lost, Nanos when) {
  return Apart(lost + ToNanos(kWithoutAgent), when) < std::min(Apart(lost, when), ToNanos(kNear));
}

}  // namespace

Nanos RanksEnd(Nanos lost, Nanos when) { return AreEndedByStarter(lost, when) ? lost + ToNanos(kWithoutAgent) : lost; }

bool EndNear(Nanos lost, Nanos when) { return Apart(RanksEnd(lost, when), when) < ToNanos(kNear); }

std::string WhyChosen(const std::vector<std::string>& among, Nanos lost, Nanos when, const std::string& what) {
  if (among.size() < 2) return "";
  if (!AreEndedByStarter(lost, when))
    return fmt::format("; of the nodes whose agents are out of reach ({}) it was lost nearest to when {}",
                       fmt::join(among, ", "), what);
  return fmt::format(
      "; of the nodes whose agents are out of reach ({}) its ranks were to be ended nearest to when {}: a starter does "
      "so {:g} s after it has lost its agent",
      fmt::join(among, ", "), what, kWithoutAgent.value);
}

}  // namespace lockstep::control
