// The size of the world, where it may change (--nnodes MIN:MAX): a node that is lost, and has no standby, is left out
// of the coming epoch; a machine that stands by is taken in while there is room. Between two epochs only, so that an
// epoch and its world are one: nodes are counted through anew, and with them the ranks.
#include <algorithm>
#include <set>

#include "lockstep/cluster/layout.h"
#include "lockstep/control/turn.h"

namespace lockstep::control {
namespace {

using incident::ActionKind;

bool MayChange(const State& state) { return state.spec.most_nodes > 0; }

std::optional<cluster::Layout> LayoutOf(const State& state) {
  const absl::StatusOr<cluster::Layout> layout = cluster::LayoutFromJson(state.spec.layout);
  if (state.spec.layout.empty() || !layout.ok() || !layout->Validate().ok()) return std::nullopt;
  return *layout;
}

bool LayoutAllows(const State& state, int ranks) {
  const std::optional<cluster::Layout> layout = LayoutOf(state);
  return !layout || layout->WithRanks(ranks).has_value();
}

int RanksOf(const std::vector<NodeSpec>& nodes) {
  int ranks = 0;
  for (const NodeSpec& node : nodes) ranks += node.ranks;
  return ranks;
}

std::vector<NodeSpec> Without(const State& state, const std::set<int>& gone) {
  std::vector<NodeSpec> left;
  for (size_t i = 0; i < state.spec.nodes.size(); ++i)
    if (!gone.contains(static_cast<int>(i))) left.push_back(state.spec.nodes[i]);
  return left;
}

// Those that stand by, are fit and would make the world larger, in the order of their coming. One with the name of a
// node that is left waits for that one's place: nodes are told apart by their names.
std::vector<NodeSpec> JoiningTo(const std::vector<NodeSpec>& left, const State& state) {
  if (!MayChange(state) || !state.may_grow || state.spec.observe_only || state.spec.policy.dry_run) return {};
  if (left.size() < 2 && state.frontier >= 0) return {};  // a node alone has no keeper, from whom others could have it
  const size_t room = static_cast<size_t>(state.spec.most_nodes) - std::min(left.size(), size_t(state.spec.most_nodes));
  std::vector<NodeSpec> joining;
  for (const NodeSpec& standby : state.standbys) {
    const bool is_new = std::ranges::find(left, standby.name, &NodeSpec::name) == left.end();
    if (is_new && WhyUnfit(state, standby).empty() && joining.size() < room) joining.push_back(standby);
  }
  while (!joining.empty() && !LayoutAllows(state, RanksOf(left) + RanksOf(joining))) joining.pop_back();
  return joining;
}

// Of what is known by node; of those that are gone, nothing.
template <typename Value>
std::map<int, Value> Renumbered(const std::map<int, Value>& known, const std::vector<int>& from) {
  std::map<int, Value> renumbered;
  for (size_t i = 0; i < from.size(); ++i)
    if (const auto before = known.find(from[i]); before != known.end())
      renumbered.emplace(static_cast<int>(i), before->second);
  return renumbered;
}

void Renumber(State& state, const std::vector<int>& from) {
  state.lost_agents = Renumbered(state.lost_agents, from);
  state.awaited = Renumbered(state.awaited, from);
  state.alerts.Renumber(from);
  const auto leads = std::find(from.begin(), from.end(), state.spec.leading_node);
  if (state.spec.leading_node >= 0) state.spec.leading_node = static_cast<int>(leads - from.begin());
  state.fault.named.clear();
  state.fault.stuck.clear();
  state.exits.clear();
}

void TakeWorld(State& state, std::vector<NodeSpec> nodes) {
  state.spec.nodes = std::move(nodes);
  state.spec.ranks = RanksOf(state.spec.nodes);
  if (const std::optional<cluster::Layout> layout = LayoutOf(state))
    state.spec.layout = cluster::LayoutJson(layout->WithRanks(state.spec.ranks).value_or(*layout));
}

// The world of the coming epoch, if it is another one.
std::optional<Resize> SettleWorld(Turn& turn) {
  State& state = turn.state;
  std::vector<NodeSpec> nodes = Without(state, state.vacated);
  const std::vector<NodeSpec> joining = JoiningTo(nodes, state);
  if (state.vacated.empty() && joining.empty()) return std::nullopt;
  const size_t nodes_before = state.spec.nodes.size();
  const int ranks_before = state.spec.ranks;
  Resize change;
  for (size_t i = 0; i < nodes_before; ++i)
    if (!state.vacated.contains(static_cast<int>(i))) change.from.push_back(static_cast<int>(i));
  change.from.resize(nodes.size() + joining.size(), -1);
  for (const NodeSpec& joins : joining) {
    state.joining.insert(joins.token);
    (void)TakeStandby(state, std::ranges::find(state.standbys, joins));
  }
  nodes.insert(nodes.end(), joining.begin(), joining.end());
  if (!joining.empty()) state.grown = turn.at;
  state.world_since = EpochId(state.epoch.value() + 1);
  state.vacated.clear();
  Renumber(state, change.from);
  TakeWorld(state, std::move(nodes));
  NoteRoom(turn);
  Act(turn, ActionKind::kNote,
      fmt::format("the world has {} nodes with {} ranks from now on, and had {} with {}", state.spec.nodes.size(),
                  state.spec.ranks, nodes_before, ranks_before));
  return change;
}

}  // namespace

bool FitsWithout(const State& state, const std::set<int>& gone) {
  if (!MayChange(state) || gone.contains(state.spec.leading_node)) return false;
  const std::vector<NodeSpec> left = Without(state, gone);
  const size_t least = static_cast<size_t>(std::max(1, state.spec.least_nodes));
  return left.size() >= least && LayoutAllows(state, RanksOf(left));
}

void GoOnWithout(Turn& turn, int node, const std::string& why, Role role) {
  State& state = turn.state;
  const NodeSpec& place = state.spec.nodes[static_cast<size_t>(node)];
  state.evictions.push_back({place, "", why, turn.at, role, Open(state).id});
  state.awaited.erase(node);
  state.fault.stuck.erase(node);
  state.joining.erase(place.token);
  state.vacated.insert(node);
  state.alerts.Forget(node);
  ActOnPlan(turn, ActionKind::kEvict,
            fmt::format("node {} is out of the job, which goes on without it: nobody stands by", place.name));
  if (const auto lost = state.lost_agents.extract(node); !lost.empty())
    CloseIncident(turn, lost.mapped().incident, "the job goes on without it");
  turn.commands.push_back(Vacate{node, place});
  AnnounceOpen(turn);
  if (state.mode == Mode::kChoosing) BeginChoosing(turn);
}

void BeginChoosing(Turn& turn) {
  State& state = turn.state;
  state.mode = Mode::kChoosing;
  const std::optional<Resize> change = SettleWorld(turn);
  if (!change) return Ask(turn);
  turn.commands.push_back(*change);  // behind whoever goes, for it counts anew
  for (Command& command : PendingCommands(state)) turn.commands.push_back(std::move(command));
}

// Those that join may be what made up for others that were lost meanwhile.
void UndoGrowth(Turn& turn, const std::string& why) {
  State& state = turn.state;
  state.may_grow = false;
  const std::set<std::string> joining = std::exchange(state.joining, {});
  std::set<int> gone;
  for (size_t i = 0; i < state.spec.nodes.size(); ++i)
    if (joining.contains(state.spec.nodes[i].token)) gone.insert(static_cast<int>(i));
  if (!FitsWithout(state, gone)) return BeginFinish(turn, kExitLost, why, {});
  for (size_t i = 0; i < state.spec.nodes.size(); ++i) {
    if (!gone.contains(static_cast<int>(i))) continue;
    state.evictions.push_back({state.spec.nodes[i], "", why, turn.at, Role::kLoss, Open(state).id, false, false});
    state.vacated.insert(static_cast<int>(i));
    if (const auto lost = state.lost_agents.extract(static_cast<int>(i)); !lost.empty())
      CloseIncident(turn, lost.mapped().incident, "it does not join");
    turn.commands.push_back(Vacate{static_cast<int>(i), state.spec.nodes[i]});
  }
  Act(turn, ActionKind::kNote, "the world does not grow after all, now or later: " + why);
  BeginChoosing(turn);
}

void NoteRoom(Turn& turn) {
  State& state = turn.state;
  const bool room = !JoiningTo(Without(state, state.vacated), state).empty();
  if (!room) state.room_since = {};
  if (room && state.room_since.value == 0) state.room_since = turn.at;
}

bool IsGrowthDue(const State& state, Nanos now) {
  const bool trains = state.mode == Mode::kRunning && state.in_loop && !state.paused && !state.open;
  const int64_t began = state.restore ? state.restore->step : -1;
  if (!trains || state.room_since.value == 0 || state.progress.step <= began) return false;
  if (JoiningTo(state.spec.nodes, state).empty()) return false;  // there was room, before the job went on
  const bool soon = state.grown.value != 0 && now - state.grown < ToNanos(state.spec.policy.grow_every);
  return !soon && now - state.room_since >= ToNanos(state.spec.policy.grow_after);
}

void On(Turn& turn, const GrowthDue&) {
  const State& state = turn.state;
  if (!IsGrowthDue(state, turn.at)) return Ignore(turn);
  std::string names;
  for (const NodeSpec& joins : JoiningTo(state.spec.nodes, state)) names += (names.empty() ? "" : ", ") + joins.name;
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kUpdate;
  finding.suspects = {{incident::Suspect::Kind::kSoftware, "the world"}};
  finding.evidence = {fmt::format("it has {} nodes, may have {}, and there are more: {}", state.spec.nodes.size(),
                                  state.spec.most_nodes, names)};
  finding.since = state.now;  // until now the job trained
  LeadWith(turn, std::move(finding));
}

}  // namespace lockstep::control
