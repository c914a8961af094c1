// Who takes the place of a node: a warm standby, where one waits and the policy allows it. A node that is lost and has
// none ends the job, for its ranks are part of it.
#include <algorithm>

#include "lockstep/control/turn.h"

namespace lockstep::control {
namespace {

using incident::ActionKind;
using incident::Finding;

std::vector<NodeSpec>::const_iterator StandbyFor(const State& state, int node) {
  const auto& nodes = state.spec.nodes;
  if (node < 0 || node >= static_cast<int>(nodes.size())) return state.standbys.end();
  return std::find_if(state.standbys.begin(), state.standbys.end(),
                      [&](const NodeSpec& standby) { return standby.ranks == nodes[static_cast<size_t>(node)].ranks; });
}

std::string WhoIsLost(const State& state, const AgentGone& event) {
  const auto node = static_cast<size_t>(event.node);
  if (node >= state.spec.nodes.size()) return event.why;
  return fmt::format("node {} is lost: {}", state.spec.nodes[node].name, event.why);
}

Finding LossOf(const State& state, int node, const std::string& why, Nanos since) {
  Finding finding;
  finding.syndrome = incident::Syndrome::kNodeLost;
  finding.suspects = {{incident::Suspect::Kind::kNode, state.spec.nodes[static_cast<size_t>(node)].name}};
  finding.evidence = {why};
  finding.certain = true;
  finding.since = since;
  return finding;
}

// The node is lost with all its ranks, since `since`: the epoch ends, if it has not, and a standby takes its place.
void LoseNode(Turn& turn, int node, const std::string& why, Nanos since) {
  State& state = turn.state;
  Finding finding = LossOf(state, node, why, since);
  const bool repairing = state.mode == Mode::kStopping || state.mode == Mode::kProbing || state.mode == Mode::kChoosing;
  const bool keeping_stacks = state.mode == Mode::kConfirming && state.fault.keeping_stacks;
  if (repairing || keeping_stacks) {
    auto& findings = Open(state).findings;
    const bool was_first = finding.since <= incident::Lead(Open(state)).since;
    findings.insert(was_first ? findings.begin() : findings.end(), std::move(finding));
  } else {
    LeadWith(turn, std::move(finding));
  }
  // It would have had stacks to tell, too.
  if (keeping_stacks) {
    state.fault.keeping_stacks = false;
    Repair(turn);
  }
  if (state.mode != Mode::kFinishing && HasStandbyFor(state, node)) Replace(turn, node, why, Role::kLoss);
}

}  // namespace

bool HasStandbyFor(const State& state, int node) { return StandbyFor(state, node) != state.standbys.end(); }

void Replace(Turn& turn, int node, const std::string& why, Role role) {
  State& state = turn.state;
  const auto standby = StandbyFor(state, node);
  NodeSpec& place = state.spec.nodes[static_cast<size_t>(node)];
  state.evictions.push_back({place, standby->name, why, turn.at, role});
  ActOnPlan(turn, ActionKind::kEvict,
            fmt::format("node {} is out of the job, standby {} in its place", place.name, standby->name));
  place = *standby;
  state.standbys.erase(standby);
  state.alerts.Forget(node);
  if (const auto lost = state.lost_agents.extract(node); !lost.empty())
    CloseWatcherIncident(turn, lost.mapped(), fmt::format("standby {} took its place", place.name));
  turn.commands.push_back(Seat{node});
  AnnounceOpen(turn);
}

bool IsReplaceable(const State& state, int node) {
  const std::vector<std::string>& roles = state.spec.policy.may_evict;
  const bool may = std::find(roles.begin(), roles.end(), RoleName(Role::kLoss)) != roles.end();
  return may && !state.spec.policy.dry_run && !state.spec.observe_only && HasStandbyFor(state, node);
}

std::optional<int> LostReplaceable(const State& state) {
  for (const auto& [node, index] : state.lost_agents)
    if (IsReplaceable(state, node)) return node;
  return std::nullopt;
}

void LoseLostNode(Turn& turn, int node) {
  const Finding& agent = incident::Lead(turn.state.incidents[turn.state.lost_agents.at(node)]);
  const std::string why = agent.evidence.front();  // the incident closes
  LoseNode(turn, node, why + ", others have lost their connections to its ranks, and nobody in reach died",
           agent.since);
}

void LoseStuckNodes(Turn& turn, const std::vector<int>& nodes) {
  State& state = turn.state;
  const std::string why = fmt::format("its ranks have not ended {:g} s after they were killed: they hang in its kernel",
                                      state.spec.policy.stuck_within.value);
  for (const int node : nodes) {
    if (node < 0 || node >= static_cast<int>(state.spec.nodes.size())) continue;
    if (IsReplaceable(state, node)) {
      LoseNode(turn, node, why, turn.at);
    } else {
      Act(turn, ActionKind::kNote,
          fmt::format("node {}: {}; there is no standby for it, so the restart waits for them",
                      state.spec.nodes[static_cast<size_t>(node)].name, why));
    }
  }
  AnnounceOpen(turn);
}

void On(Turn& turn, const AgentGone& event) {
  State& state = turn.state;
  if (state.mode == Mode::kFinishing) return;
  if (!IsReplaceable(state, event.node)) return BeginFinish(turn, kExitLost, WhoIsLost(state, event), {});
  const auto lost = state.lost_agents.find(event.node);
  LoseNode(turn, event.node, event.why,
           lost != state.lost_agents.end() ? state.incidents[lost->second].opened : turn.at);
}

void On(Turn& turn, const StandbyCame& event) {
  On(turn, StandbyLeft{event.node.token});  // it is back
  turn.state.standbys.push_back(event.node);
  Reconsider(turn);
}

void On(Turn& turn, const StandbyLeft& event) {
  std::erase_if(turn.state.standbys, [&](const NodeSpec& standby) { return standby.token == event.token; });
}

}  // namespace lockstep::control
