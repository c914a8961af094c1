// Who takes the place of a node: a warm standby, where one waits and the policy allows it. A node that is lost and has
// none ends the job, for its ranks are part of it.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/control/ranks_end.h"
#include "lockstep/control/turn.h"

namespace lockstep::control {
namespace {

using incident::ActionKind;
using incident::Finding;

// What has not come back by then has no workers to bring: its starter has ended them.
constexpr Seconds kAgentLimit{kWithoutAgent + Seconds{5}};
// Since a fault was noticed: by then the silence of a machine is noticed, too, that went down with it.
constexpr Seconds kUntilSilent{5};
// Where another machine can take its place, a node need not come back. Longer than a link that is cut for some seconds.
constexpr Seconds kReplaceableLimit{10};
// Nor need it where a stop was asked for; of whose grace this leaves most to what is still to go to disk.
constexpr double kShareOfGrace = 1.0 / 3;

const std::string& NodeName(const State& state, int node) { return state.spec.nodes[static_cast<size_t>(node)].name; }

// Its ranks may be lost for good, by anybody's word but a coordinator's that only says what it would do.
bool MayLose(const State& state) {
  const std::vector<std::string>& roles = state.spec.policy.may_evict;
  const bool may = std::find(roles.begin(), roles.end(), RoleName(Role::kLoss)) != roles.end();
  return may && !state.spec.policy.dry_run && !state.spec.observe_only;
}

// Of a node whose agent is in reach and says that its workers are gone, nobody knows what else is left: it is not
// awaited.
bool CanAwait(const State& state, int node) {
  return state.spec.can_ask && MayLose(state) && state.lost_agents.contains(node);
}

// Without this node the job can go on, smaller.
bool CanDoWithout(const State& state, int node) {
  std::set<int> gone = state.vacated;
  const bool is_node = node >= 0 && node < static_cast<int>(state.spec.nodes.size());
  return is_node && state.mode != Mode::kLoading && MayLose(state) && gone.insert(node).second &&
         FitsWithout(state, gone);
}

// Before the job does without, another machine is waited for.
bool MustAwait(const State& state, int node, Nanos at) {
  if (!CanAwait(state, node)) return false;
  return !state.awaited.contains(node) || at < GoneAt(state, node, {});
}

// Nodes whose agents are out of reach, and whose place somebody could have, or nobody.
std::vector<int> AllLostReplaceable(const State& state) {
  std::vector<int> nodes;
  for (const auto& [node, lost] : state.lost_agents)
    if (IsReplaceable(state, node) || (CanDoWithout(state, node) && !CanAwait(state, node))) nodes.push_back(node);
  return nodes;
}

void Await(Turn& turn, int node) {
  State& state = turn.state;
  const size_t index = state.open ? *state.open : state.lost_agents.at(node).incident;
  incident::Incident& incident = state.incidents[index];
  state.awaited[node] = {turn.at, incident.id};
  incident.actions.push_back(
      {ActionKind::kNote,
       fmt::format("nobody stands by for node {}: another machine is asked for, and awaited for {:g} s",
                   NodeName(state, node), state.spec.policy.wait_for_node.value),
       true, turn.at});
  turn.commands.push_back(AskForNodes{1});
  AnnounceIncident(turn, index);
}

std::string WhoIsLost(const State& state, const AgentGone& event) {
  const char* nobody_came = state.awaited.contains(event.node) ? "; another machine was asked for, and none came" : "";
  return fmt::format("node {} is lost: {}{}", NodeName(state, event.node), event.why, nobody_came);
}

incident::Suspect SuspectNode(const State& state, int node) {
  return {incident::Suspect::Kind::kNode, NodeName(state, node)};
}

Finding LossOf(const State& state, int node, const std::string& why, Nanos since) {
  Finding finding;
  finding.syndrome = incident::Syndrome::kNodeLost;
  finding.suspects = {SuspectNode(state, node)};
  finding.evidence = {why};
  finding.certain = true;
  finding.since = since;
  return finding;
}

// Of several nodes that are out of reach one is chosen by the time alone at which it was lost. Those are none whose
// ranks are known to have stepped on.
Finding ChosenLossOf(const State& state, int node, const std::string& why, Nanos since) {
  Finding finding = LossOf(state, node, why, since);
  for (const auto& [other, lost] : state.lost_agents)
    if (other != node && !WentOn(UnheardSince(state, other, {}), state.progress.step_end))
      finding.ambiguous_with.push_back(SuspectNode(state, other));
  return finding;
}

bool IsRepairing(const State& state) {
  return state.mode == Mode::kStopping || state.mode == Mode::kProbing || state.mode == Mode::kChoosing;
}

// Whoever is lost while the job is repaired is waited for there, whatever the cause was, if that is known.
Finding LossBy(const State& state, const AgentGone& event, Nanos since) {
  const bool is_chosen = !IsRepairing(state) || (event.explains && state.fault.unexplained);
  if (is_chosen) return ChosenLossOf(state, event.node, event.why, since);
  return LossOf(state, event.node, event.why, since);
}

// The open incident has it, or a new one, which it leads unless a culprit that began before it does. It is the cause
// of a lost connection that had none: true.
bool Join(Turn& turn, Finding finding, bool explains) {
  EnsureIncident(turn);
  Fault& fault = turn.state.fault;
  auto& findings = Open(turn.state).findings;
  explains = explains && fault.unexplained;
  if (explains) fault.unexplained = false;
  const bool leads = explains || !fault.led || finding.since <= incident::Lead(Open(turn.state)).since;
  findings.insert(leads ? findings.begin() : findings.end(), std::move(finding));
  return explains;
}

Nanos LostSince(const Turn& turn, int node) {
  const auto lost = turn.state.lost_agents.find(node);
  return lost != turn.state.lost_agents.end() ? turn.state.incidents[lost->second.incident].opened : turn.at;
}

// The job can't go on without it.
void EndWith(Turn& turn, const AgentGone& event) {
  State& state = turn.state;
  const Nanos since = LostSince(turn, event.node);
  Join(turn, LossBy(state, event, since), event.explains);
  Strike(turn, since);
  state.lost_in = Open(state).id;
  BeginFinish(turn, kExitLost, WhoIsLost(state, event), {});
}

// The node is lost with all its ranks: the epoch ends, if it has not, and a standby takes its place.
void LoseNode(Turn& turn, int node, Finding finding, bool explains = false) {
  State& state = turn.state;
  const std::string why = finding.evidence.front();
  const bool keeping_stacks = state.mode == Mode::kConfirming && state.fault.keeping_stacks;
  if (IsRepairing(state) || keeping_stacks) {
    if (Join(turn, std::move(finding), explains) && state.mode == Mode::kStopping) ResolveAnew(turn);
  } else {
    LeadWith(turn, std::move(finding));
  }
  // It would have had stacks to tell, too.
  if (keeping_stacks) {
    state.fault.keeping_stacks = false;
    Repair(turn);
  }
  if (state.mode == Mode::kFinishing) return;
  PutOut(turn, node, why, Role::kLoss);
}

const Finding& AgentLoss(const State& state, int node) {
  return incident::Lead(state.incidents[state.lost_agents.at(node).incident]);
}

// Of nodes whose agents are out of reach.
std::optional<int> NearestToTheFault(const State& state, const std::vector<int>& nodes) {
  const Nanos fault = state.fault.since;
  const auto nearest = std::ranges::min_element(
      nodes, {}, [&](int node) { return Apart(RanksEnd(UnheardSince(state, node, {}), fault), fault); });
  return nearest == nodes.end() ? std::nullopt : std::optional(*nearest);
}

std::string WhyChosen(const State& state, int node, const std::vector<int>& among, const char* what) {
  std::vector<std::string> names;
  for (const int each : among) names.push_back(NodeName(state, each));
  return control::WhyChosen(names, UnheardSince(state, node, {}), state.fault.since, what);
}

// The job stands for it: the evidence was there when another machine was asked for.
void TakeAwaitedPlace(Turn& turn) {
  const State& state = turn.state;
  if (state.mode != Mode::kStopping) return;
  std::vector<int> nodes;
  for (const auto& [node, awaited] : state.awaited)
    if (IsReplaceable(state, node)) nodes.push_back(node);
  const std::optional<int> node = NearestToTheFault(state, nodes);
  if (!node) return;
  const Finding& agent = AgentLoss(state, *node);
  const std::string why = agent.evidence.front() + WhyChosen(state, *node, nodes, "the fault began");
  LoseNode(turn, *node, ChosenLossOf(state, *node, why, agent.since));
}

// The job was to go on without that node, and has not begun to: with as many nodes as before it is the better one.
void TakeVacantPlace(Turn& turn) {
  State& state = turn.state;
  if (state.mode != Mode::kStopping && state.mode != Mode::kProbing) return;
  for (const int node : state.vacated) {
    const auto standby = StandbyFor(state, node, state.standbys);
    if (standby == state.standbys.end()) continue;
    NodeSpec& place = state.spec.nodes[static_cast<size_t>(node)];
    for (Eviction& eviction : state.evictions)
      if (eviction.node.token == place.token) eviction.standby = standby->name;
    ActOnPlan(turn, ActionKind::kEvict, fmt::format("standby {} has the place of node {}", standby->name, place.name));
    place = TakeStandby(state, standby);
    state.vacated.erase(node);
    turn.commands.push_back(Seat{node, place});
    return AnnounceOpen(turn);
  }
}

// Somebody is fit to take a place who was not there, or was not fit.
void OfferStandby(Turn& turn) {
  TakeAwaitedPlace(turn);
  TakeVacantPlace(turn);
  NoteRoom(turn);
  Reconsider(turn);
}

// On account of the open incident this standby takes the place of this node.
void Replace(Turn& turn, int node, const NodeSpec& standby, const std::string& why, Role role) {
  State& state = turn.state;
  NodeSpec& place = state.spec.nodes[static_cast<size_t>(node)];
  state.evictions.push_back({place, standby.name, why, turn.at, role, Open(state).id});
  state.awaited.erase(node);
  state.fault.stuck.erase(node);
  ActOnPlan(turn, ActionKind::kEvict,
            fmt::format("node {} is out of the job, standby {} in its place", place.name, standby.name));
  if (state.joining.erase(place.token) > 0) state.joining.insert(standby.token);
  place = standby;
  state.alerts.Forget(node);
  if (const auto lost = state.lost_agents.extract(node); !lost.empty())
    CloseIncident(turn, lost.mapped().incident, fmt::format("standby {} took its place", place.name));
  turn.commands.push_back(Seat{node, place});
  AnnounceOpen(turn);
}

// Nodes are told apart by their names.
template <typename Takes>
std::vector<NodeSpec>::const_iterator FirstFor(const State& state, int node, const std::vector<NodeSpec>& standbys,
                                               const Takes& takes) {
  const auto& nodes = state.spec.nodes;
  if (node < 0 || node >= static_cast<int>(nodes.size())) return standbys.end();
  const NodeSpec& place = nodes[static_cast<size_t>(node)];
  const auto is_same = [&](const NodeSpec& standby) {
    return standby.ranks == place.ranks && standby.name == place.name && takes(standby);
  };
  const auto is_new = [&](const NodeSpec& standby) {
    return standby.ranks == place.ranks && takes(standby) &&
           std::ranges::find(nodes, standby.name, &NodeSpec::name) == nodes.end();
  };
  const auto same = std::ranges::find_if(standbys, is_same);
  return same != standbys.end() ? same : std::ranges::find_if(standbys, is_new);
}

}  // namespace

std::string WhyUnfit(const State& state, const NodeSpec& standby) {
  const auto alerts = state.alerts_of_standbys.find(standby.token);
  if (alerts == state.alerts_of_standbys.end()) return "";
  const std::vector<Alerts::Complaint> broken = alerts->second.Broken();
  return broken.empty() ? "" : ComplaintText(broken.front());
}

int CountFit(const State& state) {
  return static_cast<int>(
      std::ranges::count_if(state.standbys, [&](const NodeSpec& standby) { return WhyUnfit(state, standby).empty(); }));
}

std::vector<NodeSpec>::const_iterator StandbyFor(const State& state, int node, const std::vector<NodeSpec>& standbys) {
  return FirstFor(state, node, standbys, [&](const NodeSpec& standby) { return WhyUnfit(state, standby).empty(); });
}

std::vector<NodeSpec>::const_iterator SuccessorTo(const State& state, int node, const std::vector<NodeSpec>& standbys) {
  const auto fit = StandbyFor(state, node, standbys);
  if (fit != standbys.end() || CanDoWithout(state, node)) return fit;
  return FirstFor(state, node, standbys, [](const NodeSpec&) { return true; });
}

NodeSpec TakeStandby(State& state, std::vector<NodeSpec>::const_iterator standby) {
  NodeSpec taken = *standby;
  state.standbys.erase(standby);
  state.alerts_of_standbys.erase(taken.token);  // it says them again, as the node that it is now
  return taken;
}

void PutOut(Turn& turn, int node, const std::string& why, Role role) {
  const auto takes_over = role == Role::kLoss ? SuccessorTo : StandbyFor;
  const auto standby = takes_over(turn.state, node, turn.state.standbys);
  if (standby == turn.state.standbys.end()) return GoOnWithout(turn, node, why, role);
  Replace(turn, node, TakeStandby(turn.state, standby), why, role);
}

// In the process of the agent of one node the coordinator itself may live.
bool IsReplaceable(const State& state, int node) {
  return node != state.spec.leading_node && MayLose(state) &&
         SuccessorTo(state, node, state.standbys) != state.standbys.end();
}

Unheard UnheardSince(const State& state, int node, Nanos otherwise) {
  const auto lost = state.lost_agents.find(node);
  if (lost == state.lost_agents.end()) return {otherwise};
  return {AgentLoss(state, node).since, lost->second.silent};
}

Nanos GoneAt(const State& state, int node, Nanos lost_since) {
  if (state.stop_asked && state.mode == Mode::kFinishing)
    return lost_since + ToNanos(std::min(kReplaceableLimit, Seconds{state.spec.grace.value * kShareOfGrace}));
  if (IsReplaceable(state, node)) return lost_since + ToNanos(kReplaceableLimit);
  if (const auto awaited = state.awaited.find(node); awaited != state.awaited.end())
    return awaited->second.since + ToNanos(state.spec.policy.wait_for_node);
  if (CanAwait(state, node) || CanDoWithout(state, node)) return lost_since + ToNanos(kReplaceableLimit);
  // Of one that is cut off the ranks trained on until the job needed its agent.
  const bool silent = UnheardSince(state, node, {}).silent;
  return (silent ? std::max(lost_since, state.fault.since) : lost_since) + ToNanos(kAgentLimit);
}

bool IsEnd(const State& state, int node, Nanos at) {
  if (IsReplaceable(state, node) || CanDoWithout(state, node) || state.vacated.contains(node)) return false;
  return state.awaited.contains(node) ? at >= GoneAt(state, node, {}) : !CanAwait(state, node);
}

void AwaitLost(Turn& turn) {
  const State& state = turn.state;
  if (state.mode != Mode::kStopping) return;
  for (const auto& [node, lost] : state.lost_agents)
    if (CanAwait(state, node) && !state.awaited.contains(node)) Await(turn, node);
}

std::optional<int> LostReplaceable(const State& state) { return NearestToTheFault(state, AllLostReplaceable(state)); }

bool MayBeAnother(const State& state, int node) {
  const bool fits = EndNear(UnheardSince(state, node, {}), state.fault.since);
  return !fits && state.now - state.fault.noticed < ToNanos(kUntilSilent);
}

void LoseLostNode(Turn& turn, int node) {
  const State& state = turn.state;
  const Finding& agent = AgentLoss(state, node);
  std::string why = agent.evidence.front();
  why += ", others have lost their connections to its ranks, and nobody in reach died";
  why += WhyChosen(state, node, AllLostReplaceable(state), "that happened");
  LoseNode(turn, node, ChosenLossOf(state, node, why, agent.since));
}

void LoseStuckNodes(Turn& turn, const std::vector<int>& nodes) {
  State& state = turn.state;
  const std::string why = fmt::format("its ranks have not ended {:g} s after they were killed: they hang in its kernel",
                                      state.spec.policy.stuck_within.value);
  const std::set<int> before = std::exchange(state.fault.stuck, {});
  for (const int node : nodes) {
    if (node < 0 || node >= static_cast<int>(state.spec.nodes.size())) continue;
    if (state.vacated.contains(node)) continue;
    if (IsReplaceable(state, node) || CanDoWithout(state, node)) {
      LoseNode(turn, node, LossOf(state, node, why, turn.at));
    } else {
      if (MayLose(state)) state.fault.stuck.insert(node);
      if (before.contains(node)) continue;
      Act(turn, ActionKind::kNote,
          fmt::format("node {}: {}; there is no standby for it, so the restart waits for them", NodeName(state, node),
                      why));
    }
  }
  AnnounceOpen(turn);
}

// So it was not the one that was lost.
void On(Turn& turn, const AgentBack& event) {
  State& state = turn.state;
  const auto lost = state.lost_agents.extract(event.node);
  if (lost.empty()) return Ignore(turn);
  state.awaited.erase(event.node);
  if (state.open && event.node < static_cast<int>(state.spec.nodes.size()))
    for (Finding& finding : Open(state).findings) std::erase(finding.ambiguous_with, SuspectNode(state, event.node));
  CloseIncident(turn, lost.mapped().incident, "it is back");
}

void On(Turn& turn, const AgentGone& event) {
  State& state = turn.state;
  if (state.mode == Mode::kFinishing) return;
  const bool is_node = event.node >= 0 && event.node < static_cast<int>(state.spec.nodes.size());
  if (!is_node || state.vacated.contains(event.node)) return Ignore(turn);
  if (IsEnd(state, event.node, turn.at)) return EndWith(turn, event);
  const bool may_lose = CanDoWithout(state, event.node) && !MustAwait(state, event.node, turn.at);
  if (!IsReplaceable(state, event.node) && !may_lose)
    return state.awaited.contains(event.node) ? Ignore(turn) : Await(turn, event.node);
  LoseNode(turn, event.node, LossBy(state, event, LostSince(turn, event.node)), event.explains);
}

void On(Turn& turn, const StandbyCame& event) {
  On(turn, StandbyLeft{event.node.token});  // it is back
  turn.state.standbys.push_back(event.node);
  OfferStandby(turn);
}

void On(Turn& turn, const StandbyLeft& event) {
  std::erase_if(turn.state.standbys, [&](const NodeSpec& standby) { return standby.token == event.token; });
  turn.state.alerts_of_standbys.erase(event.token);
  NoteRoom(turn);
}

void OfStandby(Turn& turn, const Alerted& event) {
  State& state = turn.state;
  const auto standby = std::ranges::find(state.standbys, event.token, &NodeSpec::token);
  if (standby == state.standbys.end()) return Ignore(turn);
  const bool was_fit = WhyUnfit(state, *standby).empty();
  if (!state.alerts_of_standbys[event.token].Take(event, turn.at, state.spec.policy.network_window))
    return Ignore(turn);
  const bool is_fit = WhyUnfit(state, *standby).empty();
  if (is_fit && !was_fit) OfferStandby(turn);
  if (!is_fit && was_fit) NoteRoom(turn);
}

}  // namespace lockstep::control
