// A collective timed out: who did not come to it? Whoever waited long enough is not to blame.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/control/turn.h"
#include "lockstep/incident/rank_ranges.h"

namespace lockstep::control {
namespace {

using incident::Finding;
using incident::Suspect;
using incident::Syndrome;

bool IsHang(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::kStopped:
    case Syndrome::kFrozen:
    case Syndrome::kNotEntered:
    case Syndrome::kSpinning:
    case Syndrome::kDesynchronised:
    case Syndrome::kCommunicationHang:
    case Syndrome::kNonCommunicationHang:
    case Syndrome::kMismatched:
      return true;
    default:
      return false;
  }
}

// It had not left when the others had waited long enough, and did not wait in vain itself.
bool MayBeAbsent(const State& state, const Suspect& suspect, Nanos struck) {
  const std::optional<RankId> rank = incident::RankOf(suspect);
  if (!rank || state.fault.timed_out.contains(*rank)) return false;
  const auto exit = state.exits.find(*rank);
  return exit == state.exits.end() || exit->second.at > struck;
}

// Who was named last as keeping the others waiting, though not for certain, leads now.
std::optional<Finding> TakeNamed(State& state, Nanos struck) {
  std::vector<Finding>& findings = Open(state).findings;
  const auto is_other = [&](const Suspect& suspect) { return !MayBeAbsent(state, suspect, struck); };
  for (size_t i = findings.size(); i-- > 0;) {
    if (!IsHang(findings[i].syndrome)) continue;
    Finding named = findings[i];
    std::erase_if(named.suspects, is_other);
    std::erase_if(named.ambiguous_with, is_other);
    if (named.suspects.empty()) continue;
    findings.erase(findings.begin() + static_cast<std::ptrdiff_t>(i));
    return named;
  }
  return std::nullopt;
}

// Nobody was named: it may be whoever is left, if these are few.
Finding Unnamed(const State& state, Nanos struck) {
  Finding finding;
  finding.syndrome = Syndrome::kStalled;
  finding.since = struck;
  finding.evidence = {"a collective timed out, and who did not come to it is not known"};
  for (int rank = 0; rank < state.spec.ranks; ++rank) {
    const Suspect suspect = incident::SuspectRank(RankId(rank));
    if (MayBeAbsent(state, suspect, struck)) finding.ambiguous_with.push_back(suspect);
  }
  if (finding.ambiguous_with.size() * 2 >= static_cast<size_t>(state.spec.ranks)) finding.ambiguous_with.clear();
  return finding;
}

}  // namespace

Finding WhoDidNotCome(State& state, const Finding& loss) {
  std::optional<Finding> named = TakeNamed(state, loss.since);
  state.fault.unexplained = !named;
  Finding finding = named ? *std::move(named) : Unnamed(state, loss.since);
  std::vector<int> ranks;
  for (const RankId rank : state.fault.timed_out) ranks.push_back(rank.value());
  finding.evidence.push_back(incident::RanksAsRanges(ranks) + " waited until a collective timed out");
  finding.evidence.push_back(loss.evidence.front());
  return finding;
}

}  // namespace lockstep::control
