#include "lockstep/history/run.h"

#include <algorithm>
#include <array>

#include "lockstep/control/report.h"

namespace lockstep::history {
namespace {

using control::State;
using incident::ActionKind;
using incident::Suspect;

// A node in one of the job's places, by the ledger's time.
struct Seating {
  size_t place;
  Stay stay;
};

// Who had which place when: from who has it now, back through the evictions.
std::vector<Seating> Seatings(const State& state, const std::string& host, Nanos begin, Nanos end) {
  std::vector<Seating> seatings, now;
  for (size_t place = 0; place < state.spec.nodes.size(); ++place)
    now.push_back({place, {state.spec.nodes[place].name, begin, end}});
  if (now.empty()) now.push_back({0, {host, begin, end}});
  for (auto eviction = state.evictions.rbegin(); eviction != state.evictions.rend(); ++eviction) {
    const auto taken = std::find_if(now.begin(), now.end(),
                                    [&](const Seating& seating) { return seating.stay.node == eviction->standby; });
    if (taken == now.end()) continue;
    seatings.push_back(*taken);
    seatings.back().stay.from = eviction->at;
    taken->stay = {eviction->node.name, begin, eviction->at};
  }
  seatings.insert(seatings.end(), now.begin(), now.end());
  std::reverse(seatings.begin(), seatings.end());
  return seatings;
}

size_t PlaceOf(const control::JobSpec& spec, RankId rank) {
  int end = 0;
  for (size_t place = 0; place < spec.nodes.size(); ++place)
    if (rank.value() < (end += spec.nodes[place].ranks)) return place;
  return 0;
}

// Who had the place when something was noticed: at the very moment of an eviction, the one that is evicted.
std::string HolderOf(const std::vector<Seating>& seatings, size_t place, Nanos at) {
  for (const Seating& seating : seatings)
    if (seating.place == place && at <= seating.stay.to) return seating.stay.node;
  return "";
}

std::vector<std::string> NamedNodes(const State& state, const std::vector<Seating>& seatings,
                                    const incident::Incident& incident) {
  std::vector<std::string> nodes;
  if (incident::Lead(incident).syndrome == incident::Syndrome::kDataSlow) return nodes;  // no fault of its machine
  for (const Suspect& suspect : incident::Lead(incident).suspects) {
    std::string node = suspect.kind == Suspect::Kind::kNode ? suspect.name : "";
    if (const std::optional<RankId> rank = incident::RankOf(suspect))
      node = HolderOf(seatings, PlaceOf(state.spec, *rank), incident.opened);
    if (!node.empty() && std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(std::move(node));
  }
  return nodes;
}

Component ComponentOf(const incident::Finding& lead) {
  if (lead.syndrome == incident::Syndrome::kWatcherLost) return Component::kWatcher;
  if (lead.suspects.empty()) return Component::kJob;
  switch (lead.suspects.front().kind) {
    case Suspect::Kind::kRank:
      return Component::kRank;
    case Suspect::Kind::kNode:
      return Component::kNode;
    case Suspect::Kind::kNicPort:
    case Suspect::Kind::kLink:
    case Suspect::Kind::kBlock:  // of nodes: what lies between them
      return Component::kLink;
    case Suspect::Kind::kSoftware:
      return Component::kSoftware;
  }
  return Component::kJob;
}

Resolution Of(const incident::Action& action) {
  if (!action.done) return Resolution::kByItself;
  switch (action.kind) {
    case ActionKind::kEvict:
      return Resolution::kEvict;
    case ActionKind::kRestart:
      return Resolution::kRestart;
    case ActionKind::kRollback:
      return Resolution::kRollback;
    case ActionKind::kHotUpdate:
      return Resolution::kHotUpdate;
    case ActionKind::kReplan:
      return Resolution::kReplan;
    case ActionKind::kStop:
      return Resolution::kEnd;
    case ActionKind::kCheckpoint:
    case ActionKind::kNote:
      return Resolution::kByItself;
  }
  return Resolution::kByItself;
}

Resolution ResolutionOf(const incident::Incident& incident) {
  if (incident.closed.value == 0) return Resolution::kOpen;
  Resolution strongest = Resolution::kByItself;
  for (const incident::Action& action : incident.actions) strongest = std::max(strongest, Of(action));
  return strongest;
}

Incident IncidentOf(const State& state, const std::vector<Seating>& seatings, size_t index, Nanos end) {
  const incident::Incident told = control::WithPhases(state, index, end);
  const incident::Finding& lead = incident::Lead(told);
  Incident incident;
  incident.symptom = lead.syndrome;
  incident.component = ComponentOf(lead);
  incident.resolution = ResolutionOf(told);
  incident.certain = lead.certain;
  incident.drill = !told.drill.empty();
  incident.opened = told.opened_wall;
  incident.phases = told.phases;
  incident.nodes = NamedNodes(state, seatings, told);
  incident.nodes_lost = std::count_if(told.actions.begin(), told.actions.end(), [](const incident::Action& action) {
    return action.kind == ActionKind::kEvict && action.done;
  });
  return incident;
}

// The node whose loss ended the job: that of the agent that was missed last.
std::optional<Incident> FatalLoss(const State& state, const RunFacts& run) {
  if (state.mode != control::Mode::kFinished || state.exit_code != control::kExitLost) return std::nullopt;
  Incident loss{.symptom = incident::Syndrome::kNodeLost,
                .component = Component::kNode,
                .resolution = Resolution::kEnd,
                .certain = true,
                .opened = run.end,
                .nodes_lost = 1};
  for (size_t i = 0; i < state.incidents.size(); ++i) {
    const incident::Finding& lead = incident::Lead(state.incidents[i]);
    for (const control::NodeSpec& node : state.spec.nodes) {
      if (lead.syndrome != incident::Syndrome::kWatcherLost || lead.suspects.empty() ||
          lead.suspects.front().name != control::AgentName(node.name))
        continue;
      loss.nodes = {node.name};
      loss.drill = run.incidents[i].drill;
    }
  }
  return loss;
}

}  // namespace

const char* ResolutionName(Resolution resolution) {
  constexpr std::array<const char*, 8> kNames = {"open",       "by_itself", "restart", "replan",
                                                 "hot_update", "rollback",  "evict",   "end"};
  return kNames[static_cast<size_t>(resolution)];
}

const char* ComponentName(Component component) {
  constexpr std::array<const char*, kComponents> kNames = {"job", "rank", "node", "link", "software", "watcher"};
  return kNames[static_cast<size_t>(component)];
}

RunFacts RunOf(std::string path, const Replayed& replayed) {
  const State& state = replayed.state;
  RunFacts run;
  run.path = std::move(path);
  run.job = state.spec.name;
  run.ranks = state.spec.ranks;
  run.nodes = std::max<int64_t>(1, static_cast<int64_t>(state.spec.nodes.size()));
  run.finished = state.mode == control::Mode::kFinished;
  run.stop_asked = replayed.stop_asked;
  run.restarts = state.restarts;
  run.ledger = state.ledger;
  run.wall_offset = replayed.last_wall - replayed.last;
  run.begin = replayed.first + run.wall_offset;
  run.end = run.begin;  // it ends where its ledger does
  for (const Nanos sum : state.ledger.Total(replayed.last)) run.end += sum;
  const std::vector<Seating> seatings = Seatings(state, replayed.host, replayed.first, run.ledger_end());
  for (size_t i = 0; i < state.incidents.size(); ++i)
    run.incidents.push_back(IncidentOf(state, seatings, i, replayed.last));
  if (std::optional<Incident> loss = FatalLoss(state, run)) run.incidents.push_back(*std::move(loss));
  for (const auto& [place, stay] : seatings)
    run.stays.push_back({stay.node, stay.from + run.wall_offset, stay.to + run.wall_offset});
  return run;
}

}  // namespace lockstep::history
