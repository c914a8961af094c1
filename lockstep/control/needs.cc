#include "lockstep/control/needs.h"

#include <algorithm>
#include <set>

namespace lockstep::control {
namespace {

// Of the nodes whose place is to be taken, those for which none of the standbys fits; each is there for one of them.
int CountAwaited(const State& state) {
  std::vector<NodeSpec> standbys = state.standbys;
  std::set<int> nodes;
  for (const auto& [node, awaited] : state.awaited) nodes.insert(node);
  if (state.mode == Mode::kStopping) nodes.insert(state.fault.stuck.begin(), state.fault.stuck.end());
  int count = 0;
  for (const int node : nodes) {
    const auto fits = StandbyFor(state, node, standbys);
    fits != standbys.end() ? void(standbys.erase(fits)) : void(++count);
  }
  return count;
}

// What a probe named in the incident that is open, and no standby was there for.
int CountNamed(const State& state) {
  const bool current =
      state.open && !state.decisions.empty() && state.decisions.back().incident == state.incidents[*state.open].id;
  if (!current) return 0;
  return std::max(0, state.decisions.back().decision.machines_wanted - CountFit(state));
}

// On whose account: the first loss, or the newest decision that wanted one. 0: of none, for an alert that came while
// the job was paused is not decided on yet.
int64_t IncidentOf(const State& state) {
  if (!state.awaited.empty()) return state.awaited.begin()->second.incident;
  for (auto decided = state.decisions.rbegin(); decided != state.decisions.rend(); ++decided)
    if (decided->decision.machines_wanted > 0) return decided->incident;
  return state.open ? state.incidents[*state.open].id : 0;
}

void AddShortfall(const State& state, schedule::Wanted& wanted) {
  if (!state.spec.can_ask) return;
  const int accused = AnswerToAlerts(state, Symptom::kMachine).machines_wanted +
                      AnswerToAlerts(state, Symptom::kNetwork).machines_wanted;
  wanted.machines = CountAwaited(state) + std::max(accused, CountNamed(state));
  if (wanted.machines == 0) return;
  wanted.incident = IncidentOf(state);
  for (const NodeSpec& node : state.spec.nodes) wanted.here.push_back(node.name);
  for (const NodeSpec& standby : state.standbys) wanted.here.push_back(standby.name);
  for (const Eviction& eviction : state.evictions)
    if (eviction.joined) wanted.banned.push_back(eviction.node.name);
}

}  // namespace

schedule::Wanted NeedsOf(const State& state) {
  schedule::Wanted wanted;
  const bool begun = state.epoch.value() != 0;
  if (!begun || state.spec.observe_only || state.spec.policy.dry_run) return wanted;
  for (const Eviction& eviction : state.evictions) {
    if (eviction.role == Role::kLoss || eviction.drain_told) continue;
    wanted.drains.push_back({eviction.node.name,
                             fmt::format("lockstep: incident {}: {}", eviction.incident, eviction.why),
                             eviction.incident});
  }
  if (state.mode != Mode::kFinishing && state.mode != Mode::kFinished) AddShortfall(state, wanted);
  return wanted;
}

}  // namespace lockstep::control
