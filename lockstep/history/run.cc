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

// Calls visit(nodes, from, to) for each world, in wall time.
template <typename Visit>
void ForEachWorld(const State& state, const RunFacts& run, Visit visit) {
  for (size_t i = 0; i < state.worlds.size(); ++i) {
    const bool is_last = i + 1 == state.worlds.size();
    const Nanos from = i == 0 ? run.begin : state.worlds[i].since + run.wall_offset;
    visit(state.worlds[i].nodes, from, is_last ? run.end : state.worlds[i + 1].since + run.wall_offset);
  }
}

std::vector<Stay> StaysOf(const State& state, const RunFacts& run, const std::string& host) {
  std::vector<Stay> stays;
  std::map<std::string, size_t> newest;  // of each node, among these
  ForEachWorld(state, run, [&](const std::vector<control::NodeSpec>& nodes, Nanos from, Nanos to) {
    for (const control::NodeSpec& node : nodes) {
      const auto known = newest.find(node.name);
      if (known != newest.end() && stays[known->second].to == from) {
        stays[known->second].to = to;
      } else {
        newest[node.name] = stays.size();
        stays.push_back({node.name, from, to});
      }
    }
  });
  if (stays.empty()) stays.push_back({host, run.begin, run.end});
  return stays;
}

std::vector<Size> SizesOf(const State& state, const RunFacts& run) {
  std::vector<Size> sizes;
  ForEachWorld(state, run, [&](const std::vector<control::NodeSpec>& nodes, Nanos from, Nanos to) {
    Size size{from, to, 0, static_cast<int64_t>(nodes.size())};
    for (const control::NodeSpec& node : nodes) size.ranks += node.ranks;
    if (nodes.empty()) size = {from, to, state.spec.ranks, 1};
    const bool is_as_before =
        !sizes.empty() && sizes.back().ranks == size.ranks && sizes.back().nodes == size.nodes;  // a standby's place
    is_as_before ? void(sizes.back().to = to) : sizes.push_back(size);
  });
  return sizes;
}

bool IsOn(const control::Eviction& eviction, const incident::Incident& incident) {
  return eviction.joined && eviction.incident == incident.id;
}

// Whoever went on its account is named by that: of nodes that are lost together one leads.
std::vector<std::string> NamedNodes(const State& state, const std::string& host, const incident::Incident& incident) {
  std::vector<std::string> nodes;
  const auto add = [&nodes](const std::string& node) {
    if (!node.empty() && std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  };
  if (incident::Lead(incident).syndrome == incident::Syndrome::kDataSlow) return nodes;  // no fault of its machine
  for (const Suspect& suspect : incident::Lead(incident).suspects) {
    std::string node = suspect.kind == Suspect::Kind::kNode ? suspect.name : "";
    if (const std::optional<RankId> rank = incident::RankOf(suspect)) {
      const control::NodeSpec* holder = control::NodeAt(state, *rank, incident.opened);
      node = holder != nullptr ? holder->name : host;
    }
    add(node);
  }
  for (const control::Eviction& eviction : state.evictions)
    if (IsOn(eviction, incident)) add(eviction.node.name);
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
  incident.nodes_lost = told.id == state.lost_in ? 1 : 0;
  bool replaced = false;
  for (const control::Eviction& eviction : state.evictions) {
    if (!IsOn(eviction, told)) continue;
    ++incident.nodes_lost;
    replaced |= !eviction.standby.empty();
  }
  if (incident.resolution == Resolution::kEvict && incident.nodes_lost > 0 && !replaced)
    incident.resolution = Resolution::kShrink;
  return incident;
}

// Who is asked to stop while it fails has failed.
Ending EndingOf(const Replayed& replayed) {
  const State& state = replayed.state;
  if (state.mode != control::Mode::kFinished) return Ending::kUnfinished;
  if (state.exit_code == 0) return Ending::kCompleted;
  return replayed.stop_asked && state.verdict.starts_with("stopped by ") ? Ending::kStopped : Ending::kFailed;
}

}  // namespace

const char* ResolutionName(Resolution resolution) {
  constexpr std::array<const char*, 9> kNames = {"open",     "by_itself", "restart", "replan", "hot_update",
                                                 "rollback", "shrink",    "evict",   "end"};
  return kNames[static_cast<size_t>(resolution)];
}

const char* EndingName(Ending ending) {
  constexpr std::array<const char*, 4> kNames = {"unfinished", "completed", "failed", "stopped"};
  return kNames[static_cast<size_t>(ending)];
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
  run.ending = EndingOf(replayed);
  run.verdict = state.verdict;
  run.stop_asked = replayed.stop_asked;
  run.restarts = state.restarts;
  run.ledger = state.ledger;
  run.wall_offset = replayed.last_wall - replayed.last;
  run.begin = replayed.first + run.wall_offset;
  run.end = run.begin;  // it ends where its ledger does
  for (const Nanos sum : state.ledger.Total(replayed.last)) run.end += sum;
  for (const incident::Incident& told : control::AllWithPhases(state, replayed.last))
    run.incidents.push_back(IncidentOf(state, replayed.host, told));
  run.stays = StaysOf(state, run, replayed.host);
  run.sizes = SizesOf(state, run);
  return run;
}

int RunFacts::MostRanks() const {
  int most = 0;
  for (const Size& size : sizes) most = std::max(most, size.ranks);
  return most;
}

int64_t RunFacts::MostNodes() const {
  int64_t most = 0;
  for (const Size& size : sizes) most = std::max(most, size.nodes);
  return most;
}

}  // namespace lockstep::history
