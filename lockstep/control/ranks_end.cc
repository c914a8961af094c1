#include "lockstep/control/ranks_end.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep::control {
namespace {

// Between the end of ranks and what is heard of it: others were in a long step, or took their time to leave.
constexpr Seconds kNear{10};
// An agent tells a step that its ranks ended just before it was lost, or the others theirs just after.
constexpr Seconds kStepIsHeard{1};

bool AreEndedByStarter(const Unheard& lost, Nanos when) {
  const Nanos ended = lost.since + ToNanos(kWithoutAgent);
  return !lost.silent && Apart(ended, when) < std::min(Apart(lost.since, when), ToNanos(kNear));
}

}  // namespace

Nanos RanksEnd(const Unheard& lost, Nanos when) {
  return AreEndedByStarter(lost, when) ? lost.since + ToNanos(kWithoutAgent) : lost.since;
}

bool EndNear(const Unheard& lost, Nanos when) { return Apart(RanksEnd(lost, when), when) < ToNanos(kNear); }

bool WentOn(const Unheard& lost, Nanos step_end) { return step_end - RanksEnd(lost, step_end) > ToNanos(kStepIsHeard); }

std::string WhyChosen(const std::vector<std::string>& among, const Unheard& lost, Nanos when, const std::string& what) {
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
