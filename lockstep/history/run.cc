#include "lockstep/history/run.h"

#include <algorithm>
#include <array>
#include <map>

#include "lockstep/control/report.h"

namespace lockstep::history {
namespace {

using control::State;
using incident::ActionKind;
using incident::Suspect;

// By the ledger's time, from world to world.
std::vector<Stay> StaysOf(const State& state, const std::string& host, Nanos begin, Nanos end) {
  std::vector<Stay> stays;
  std::map<std::string, size_t> newest;  // of each node, among these
  for (size_t i = 0; i < state.worlds.size(); ++i) {
    const Nanos from = i == 0 ? begin : state.worlds[i].since;
    const Nanos to = i + 1 < state.worlds.size() ? state.worlds[i + 1].since : end;
    for (const control::NodeSpec& node : state.worlds[i].nodes) {
      const auto known = newest.find(node.name);
      if (known != newest.end() && stays[known->second].to == from) {
        stays[known->second].to = to;
      } else {
        newest[node.name] = stays.size();
        stays.push_back({node.name, from, to});
      }
    }
  }
  if (stays.empty()) stays.push_back({host, begin, end});
  return stays;
}

std::vector<std::string> NamedNodes(const State& state, const std::string& host, const incident::Incident& incident) {
  std::vector<std::string> nodes;
  if (incident::Lead(incident).syndrome == incident::Syndrome::kDataSlow) return nodes;  // no fault of its machine
  for (const Suspect& suspect : incident::Lead(incident).suspects) {
    std::string node = suspect.kind == Suspect::Kind::kNode ? suspect.name : "";
    if (const std::optional<RankId> rank = incident::RankOf(suspect)) {
      const control::NodeSpec* holder = control::NodeAt(state, *rank, incident.opened);
      node = holder != nullptr ? holder->name : host;
    }
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

Incident IncidentOf(const State& state, const std::string& host, const incident::Incident& told) {
  const incident::Finding& lead = incident::Lead(told);
  Incident incident;
  incident.symptom = lead.syndrome;
  incident.component = ComponentOf(lead);
  incident.resolution = ResolutionOf(told);
  incident.certain = lead.certain;
  incident.drill = !told.drill.empty();
  incident.opened = told.opened_wall;
  incident.phases = told.phases;
  incident.nodes = NamedNodes(state, host, told);
  incident.nodes_lost = std::count_if(state.evictions.begin(), state.evictions.end(), [&](const auto& eviction) {
    return eviction.joined && eviction.incident == told.id;
  });
  return incident;
}

// The node whose loss ended the job.
std::optional<Incident> FatalLoss(const State& state, const RunFacts& run) {
  if (state.mode != control::Mode::kFinished || !state.lost) return std::nullopt;
  Incident loss{.symptom = incident::Syndrome::kNodeLost,
                .component = Component::kNode,
                .resolution = Resolution::kEnd,
                .certain = true,
                .opened = run.end,
                .nodes_lost = 1};
  const auto index = static_cast<size_t>(*state.lost);
  if (index >= state.spec.nodes.size()) return loss;
  loss.nodes = {state.spec.nodes[index].name};
  for (size_t i = 0; i < state.incidents.size(); ++i) {  // the last is that of its agent, if there is one
    const incident::Finding& lead = incident::Lead(state.incidents[i]);
    const bool is_its_agent = lead.syndrome == incident::Syndrome::kWatcherLost && !lead.suspects.empty() &&
                              lead.suspects.front().name == control::AgentName(loss.nodes.front());
    if (is_its_agent) loss.drill = run.incidents[i].drill;
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
  for (const incident::Incident& told : control::AllWithPhases(state, replayed.last))
    run.incidents.push_back(IncidentOf(state, replayed.host, told));
  if (std::optional<Incident> loss = FatalLoss(state, run)) run.incidents.push_back(*std::move(loss));
  for (const Stay& stay : StaysOf(state, replayed.host, replayed.first, run.ledger_end()))
    run.stays.push_back({stay.node, stay.from + run.wall_offset, stay.to + run.wall_offset});
  return run;
}

}  // namespace lockstep::history
