#include "lockstep/control/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

namespace lockstep::control {
namespace {

constexpr Seconds kHour{3600};

Json NumberOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// [rank]; none for a job of one node, which needs no name.
std::vector<std::string_view> NodeNames(const JobSpec& spec) {
  std::vector<std::string_view> names;
  for (const NodeSpec& node : spec.nodes) names.insert(names.end(), static_cast<size_t>(node.ranks), node.name);
  return names;
}

// An agent knows of a rank by what it tells.
const std::string& StateOf(const RankStatus& rank, const State& state) {
  static const std::string kStarting = "starting", kRunning = "running";
  return state.unseen && state.mode == Mode::kRunning && rank.state == kStarting ? kRunning : rank.state;
}

Json RanksJson(const State& state, const std::vector<RankStatus>& ranks) {
  const std::vector<std::string_view> nodes = NodeNames(state.spec);
  Json list = Json::array();
  for (const RankStatus& rank : ranks) {
    list.push_back({{"rank", rank.rank.value()},
                    {"pid", rank.pid},
                    {"state", StateOf(rank, state)},
                    {"step", rank.step},
                    {"step_time_s", rank.step_time.value}});
    const bool has_node =
        rank.rank.value() >= 0 && rank.rank.value() < static_cast<int>(nodes.size());  // of this world
    if (has_node) list.back()["node"] = nodes.at(static_cast<size_t>(rank.rank.value()));
  }
  return list;
}

// Every second that was not productive, by phase.
Json EttrJson(const Ledger& ledger, Nanos now) {
  const Ledger::Sums sums = ledger.Total(now);
  Nanos wall;
  Json lost;
  for (int i = 0; i < kPhases; ++i) {
    const Nanos sum = sums[static_cast<size_t>(i)];
    wall += sum;
    if (static_cast<Phase>(i) != Phase::kProductive) lost[PhaseName(static_cast<Phase>(i))] = ToSeconds(sum).value;
  }
  return {{"cumulative", ledger.Cumulative(now)},
          {"sliding_1h", ledger.Sliding(now, kHour)},
          {"wall_s", ToSeconds(wall).value},
          {"lost_s", std::move(lost)}};
}

Json UploadJson(const std::optional<Uploaded>& upload) {
  if (!upload) return {};
  return {{"url", upload->url},
          {"epoch", upload->newest ? Json(upload->newest->epoch.value()) : Json()},
          {"step", upload->newest ? Json(upload->newest->step) : Json()},
          {"age_s", upload->newest ? Json(upload->age.value) : Json()},
          {"uploads", upload->uploads},
          {"failures", upload->failures},
          {"upload_s", upload->took.value},
          {"uploading", upload->uploading},
          {"error", upload->error}};
}

Json DiskJson(const std::optional<OnDisk>& disk) {
  if (!disk) return {};
  Json json = {{"directory", disk->directory},
               {"epoch", disk->flushed ? Json(disk->flushed->epoch.value()) : Json()},
               {"step", disk->flushed ? Json(disk->flushed->step) : Json()},
               {"age_s", disk->flushed ? Json(disk->age.value) : Json()},
               {"flushes", disk->flushes},
               {"failures", disk->failures},
               {"flush_s", disk->took.value},
               {"flushing", disk->flushing},
               {"error", disk->error}};
  if (disk->upload) json["upload"] = UploadJson(disk->upload);
  return json;
}

Json PeersJson(const std::optional<PeerCopies>& peers) {
  if (!peers) return {};
  return {{"epoch", peers->newest ? Json(peers->newest->epoch.value()) : Json()},
          {"step", peers->newest ? Json(peers->newest->step) : Json()},
          {"nodes_alone", peers->alone},
          {"kept_bytes", peers->kept.value},
          {"sent_bytes", peers->sent.value},
          {"sent_in_gaps_bytes", peers->in_gaps.value},
          {"held_bytes", peers->held.value},
          {"error", peers->error}};
}

// What only grows as long as the same agent tells it.
constexpr std::tuple kCounts(&Observed::checkpoints, &Observed::checkpoints_skipped, &Observed::checkpoints_torn,
                             &Observed::checkpoint_blocked, &Observed::records, &Observed::records_dropped,
                             &Observed::records_unwritten, &Observed::log_dropped, &Observed::console_dropped);
constexpr std::tuple kPeerCounts(&PeerCopies::kept, &PeerCopies::sent, &PeerCopies::in_gaps);
constexpr std::tuple kDiskCounts(&OnDisk::flushes, &OnDisk::failures);
constexpr std::tuple kUploadCounts(&Uploaded::uploads, &Uploaded::failures);

template <typename Part, typename Counts>
void AddCounts(const Part& one, const Counts& counts, Part& all) {
  std::apply([&](auto... count) { ((all.*count += one.*count), ...); }, counts);
}

template <typename Part, typename Counts>
void AddCounts(const std::optional<Part>& one, const Counts& counts, std::optional<Part>& all) {
  if (one && all) AddCounts(*one, counts, *all);
}

template <typename Part, typename Counts>
void KeepFallen(const Part& last, const Part& now, const Counts& counts, Part& before) {
  const auto keep = [&](auto count) {
    if (now.*count < last.*count) before.*count += last.*count;
  };
  std::apply([&](auto... count) { (keep(count), ...); }, counts);
}

template <typename Part, typename Counts>
void KeepFallen(const std::optional<Part>& last, const std::optional<Part>& now, const Counts& counts,
                std::optional<Part>& before) {
  static const Part kNothing{};
  if (!last) return;
  if (!before) before.emplace();
  KeepFallen(*last, now ? *now : kNothing, counts, *before);
}

// The newest that exists twice is the one of the node that lags most.
void Add(const PeerCopies& one, std::optional<PeerCopies>& all) {
  if (!all) {
    all = one;
    return;
  }
  all->newest = std::min(all->newest, one.newest);
  all->alone += one.alone;
  AddCounts(one, kPeerCounts, *all);
  all->held += one.held;
  if (all->error.empty()) all->error = one.error;
}

// What is whole on one node alone nobody begins from: the newest of all is that of the node that lags.
void AddCommit(const std::vector<Observed>& nodes, Observed& all) {
  if (nodes.empty()) return;
  const auto lags = std::ranges::min_element(nodes, {}, &Observed::committed);
  all.committed = lags->committed;
  all.checkpoint_age = lags->checkpoint_age;
}

// Of the slowest rank that an agent looks at. The state hears of steps every few seconds only, where nothing happens.
int64_t StepNow(const State& state, const std::vector<RankStatus>& ranks) {
  std::optional<int64_t> slowest;
  for (const RankStatus& rank : ranks)
    if (rank.state != kUnknown) slowest = std::min(slowest.value_or(rank.step), rank.step);
  const bool told = state.in_loop && !state.unseen;
  const bool all = told && slowest && ranks.size() == static_cast<size_t>(state.spec.ranks);
  return all ? std::max(state.progress.step, *slowest) : state.progress.step;
}

Json CheckpointJson(const Observed& observed) {
  return {{"epoch", observed.committed ? Json(observed.committed->epoch.value()) : Json()},
          {"step", observed.committed ? Json(observed.committed->step) : Json()},
          {"age_s", observed.checkpoint_age ? Json(observed.checkpoint_age->value) : Json()},
          {"taken", observed.checkpoints},
          {"skipped", observed.checkpoints_skipped},
          {"torn", observed.checkpoints_torn},
          {"blocked_s", observed.checkpoint_blocked.value},
          {"waits_for", Json::array()},
          {"disk", DiskJson(observed.disk)},
          {"peers", PeersJson(observed.peers)}};
}

// Why the workers of a standby would not be there as soon as those of the job's nodes are; empty: they would.
std::string WhyCold(const Observed& observed, const NodeSpec& standby) {
  const auto told = observed.standbys.find(standby.token);
  if (told == observed.standbys.end() || told->second.empty())
    return "its Python is not warm yet, as far as it has said";
  const bool as_soon = told->second == "zygote" || told->second == observed.start_method;
  return as_soon ? "" : "its workers start by exec";
}

void AddStandbys(Json& report, const State& state, const Observed& observed) {
  Json standbys = Json::array(), evicted = Json::array();
  Json unfit = Json::array(), cold = Json::array();
  for (const NodeSpec& standby : state.standbys) {
    standbys.push_back(standby.name);
    if (const std::string why = WhyUnfit(state, standby); !why.empty())
      unfit.push_back({{"name", standby.name}, {"why", why}});
    if (const std::string why = WhyCold(observed, standby); !why.empty())
      cold.push_back({{"name", standby.name}, {"why", why}});
  }
  for (const Eviction& eviction : state.evictions)
    evicted.push_back({{"name", eviction.node.name}, {"standby", eviction.standby}, {"why", eviction.why}});
  report["standbys"] = std::move(standbys);
  report["unfit_standbys"] = std::move(unfit);
  report["cold_standbys"] = std::move(cold);
  report["evicted"] = std::move(evicted);
}

// Of a run whose code or environment was changed.
void AddVersions(Json& report, const State& state, Nanos now) {
  Json versions = Json::array();
  for (const Update& update : state.versions) {
    const bool waits = update.stage == VersionStage::kWaiting || update.stage == VersionStage::kCopying;
    Json json = {{"number", update.version.number},
                 {"stage", VersionStageName(update.stage)},
                 {"code", update.version.code},
                 {"env", EnvironmentJson(update.version.env)},
                 {"why", update.why}};
    if (update.took_back > 0) json["took_back"] = update.took_back;
    if (waits) json["due_in_s"] = update.now ? 0.0 : ToSeconds(std::max(Nanos{}, update.deadline - now)).value;
    versions.push_back(std::move(json));
  }
  report["version"] = state.running;
  report["versions"] = std::move(versions);
}

bool Names(const incident::Incident& incident, int rank) {
  const auto& suspects = incident::Lead(incident).suspects;
  return std::find(suspects.begin(), suspects.end(), incident::SuspectRank(RankId(rank))) != suspects.end();
}

// The node that has the drill's rank; "": none.
std::string NodeStruckBy(const Drill& drill, const State& state) {
  const NodeSpec* node = NodeAt(state, RankId(drill.what.rank), drill.at);
  return node != nullptr ? node->name : "";
}

// Whose loss the drill brings about, by the name it has as a suspect; "": nobody's that watches.
std::string WatcherStruckBy(const Drill& drill, const State& state) {
  if (drill.what.fault == kKillCoordinator) return kCoordinatorName;
  if (drill.what.fault != kCutLink) return "";
  return AgentName(NodeStruckBy(drill, state));
}

// Whether this fault of a rank can be what is seen of it: a rank that is killed does not hang, nor is one dead that was
// to hang. Whose links are cut may leave for its lost connections.
bool LooksLike(const std::string& fault, incident::Syndrome syndrome) {
  const bool ends = fault == kKillDrill || fault == kExitDrill;
  if (syndrome == incident::Syndrome::kNan || fault == kNanDrill)
    return syndrome == incident::Syndrome::kNan && fault == kNanDrill;
  if (syndrome == incident::Syndrome::kNodeLost || fault == kKillStarter)
    return syndrome == incident::Syndrome::kNodeLost && fault == kKillStarter;
  if (syndrome == incident::Syndrome::kCrash) return ends;
  if (syndrome == incident::Syndrome::kExit) return ends || fault == kCutLink;
  return !ends;
}

// A drill accounts for an incident that names its rank in its epoch, unless that was over before it.
bool AccountsFor(const Drill& drill, const State& state, const incident::Incident& incident) {
  if (incident.closed.value != 0 && incident.closed < drill.at) return false;
  if (incident::Lead(incident).syndrome == incident::Syndrome::kWatcherLost)
    return incident::Lead(incident).suspects.front().name == WatcherStruckBy(drill, state);
  if (incident.epoch != drill.what.epoch || !LooksLike(drill.what.fault, incident::Lead(incident).syndrome))
    return false;
  if (drill.what.fault == kNanDrill) return true;  // it names no rank
  if (drill.what.fault == kKillStarter)
    return incident::Lead(incident).suspects.front().name == NodeStruckBy(drill, state);
  return drill.what.rank >= 0 && Names(incident, drill.what.rank);
}

// The incident is the loss of a node, and this one was that of its agent, from which it followed.
bool FollowsFrom(const incident::Incident& loss, const incident::Incident& agents) {
  const incident::Finding &node = incident::Lead(loss), &agent = incident::Lead(agents);
  return node.syndrome == incident::Syndrome::kNodeLost && agent.syndrome == incident::Syndrome::kWatcherLost &&
         agent.suspects.front().name == AgentName(node.suspects.front().name) && agents.opened == node.since;
}

// A drill accounts for the first incident that fits it, for the loss of a node which that became, and for no later one;
// of several the first. By incident.
std::map<size_t, const Drill*> DrillsBehind(const State& state) {
  std::map<size_t, const Drill*> behind;
  for (const Drill& drill : state.drills) {
    const auto first =
        std::find_if(state.incidents.begin(), state.incidents.end(),
                     [&](const incident::Incident& incident) { return AccountsFor(drill, state, incident); });
    behind.try_emplace(static_cast<size_t>(first - state.incidents.begin()), &drill);
    const auto loss = std::find_if(first, state.incidents.end(),
                                   [&](const incident::Incident& incident) { return FollowsFrom(incident, *first); });
    if (loss != state.incidents.end()) behind.try_emplace(static_cast<size_t>(loss - state.incidents.begin()), &drill);
  }
  return behind;
}

incident::Incident WithPhases(const State& state, size_t index, const std::map<size_t, const Drill*>& drills,
                              Nanos now) {
  incident::Incident incident = state.incidents[index];
  incident.phases = state.ledger.OfIncident(incident.id, now);
  if (const auto drill = drills.find(index); drill != drills.end()) incident.drill = Text(drill->second->what);
  return incident;
}

}  // namespace

incident::Incident WithPhases(const State& state, size_t index, Nanos now) {
  return WithPhases(state, index, DrillsBehind(state), now);
}

std::vector<incident::Incident> AllWithPhases(const State& state, Nanos now) {
  const std::map<size_t, const Drill*> drills = DrillsBehind(state);
  std::vector<incident::Incident> all;
  all.reserve(state.incidents.size());
  for (size_t i = 0; i < state.incidents.size(); ++i) all.push_back(WithPhases(state, i, drills, now));
  return all;
}

const NodeSpec* NodeAt(const State& state, RankId rank, Nanos at) {
  const World* world = nullptr;
  for (const World& each : state.worlds)
    if (world == nullptr || each.since < at) world = &each;
  if (world == nullptr) return nullptr;
  int end = 0;
  for (const NodeSpec& node : world->nodes) {
    end += node.ranks;
    if (rank.value() < end) return &node;
  }
  return nullptr;
}

Observed OutOfReach(Observed observed, Nanos ago) {
  const double older = ToSeconds(ago).value;
  if (observed.checkpoint_age) observed.checkpoint_age->value += older;
  if (observed.disk) observed.disk->age.value += older;
  if (observed.disk && observed.disk->upload) observed.disk->upload->age.value += older;
  for (RankStatus& rank : observed.ranks) rank.state = kUnknown;
  observed.loss = std::numeric_limits<double>::quiet_NaN();
  return observed;
}

void KeepCounts(const Observed& last, const Observed& now, Observed& before) {
  KeepFallen(last, now, kCounts, before);
  KeepFallen(last.peers, now.peers, kPeerCounts, before.peers);
  KeepFallen(last.disk, now.disk, kDiskCounts, before.disk);
  if (last.disk)
    KeepFallen(last.disk->upload, now.disk ? now.disk->upload : std::nullopt, kUploadCounts, before.disk->upload);
}

Observed Together(const std::vector<Observed>& nodes, const Observed& before) {
  Observed all;
  AddCommit(nodes, all);
  double loss = 0;
  int known = 0;
  for (const Observed& node : nodes) {
    all.ranks.insert(all.ranks.end(), node.ranks.begin(), node.ranks.end());
    if (!std::isnan(node.loss)) loss += node.loss, ++known;
    AddCounts(node, kCounts, all);
    if (node.disk) all.disk = node.disk;
    if (node.peers) Add(*node.peers, all.peers);
    if (all.start_method.empty()) all.start_method = node.start_method;
  }
  if (known > 0) all.loss = loss / known;
  AddCounts(before, kCounts, all);
  AddCounts(before.peers, kPeerCounts, all.peers);
  AddCounts(before.disk, kDiskCounts, all.disk);
  if (before.disk && all.disk) AddCounts(before.disk->upload, kUploadCounts, all.disk->upload);
  return all;
}

void Forget(Json& value) {
  if (!value.is_object()) return void(value = Json());
  for (Json& member : value) Forget(member);
}

Json StatusReport(const State& state, const Observed& observed, Nanos now) {
  const int64_t step = StepNow(state, observed.ranks);
  Json report = {
      {"state", state.paused ? "paused" : ModeName(state.mode)},
      {"job", state.spec.name},
      {"epoch", state.epoch.value()},
      {"step", step},
      {"furthest_step", std::max(state.frontier, step)},
      {"loss", NumberOrNull(observed.loss)},
      {"loss_is_finite", std::isnan(observed.loss) ? Json() : Json(std::isfinite(observed.loss))},
      {"start_method", observed.start_method},
      {"ranks", RanksJson(state, observed.ranks)},
      {"ettr", EttrJson(state.ledger, now)},
      {"checkpoint", CheckpointJson(observed)},
      {"records", {{"kept", observed.records}, {"dropped", observed.records_dropped + observed.records_unwritten}}},
      {"output",
       {{"log_dropped_bytes", observed.log_dropped.value}, {"console_dropped_bytes", observed.console_dropped.value}}},
      {"restarts", state.restarts},
      {"incidents", state.incidents.size()},
      {"ignored_events", state.ignored_events},
      {"verdict", state.verdict}};
  if (state.spec.standbys > 0 || state.spec.can_ask || state.spec.most_nodes > 0) AddStandbys(report, state, observed);
  if (state.spec.most_nodes > 0)
    report["world"] = {{"nodes", state.spec.nodes.size()},
                       {"ranks", state.spec.ranks},
                       {"least_nodes", state.spec.least_nodes},
                       {"most_nodes", state.spec.most_nodes}};
  if (!state.spec.entry.empty()) report["entry"] = state.spec.entry;
  if (state.versions.size() > 1) AddVersions(report, state, now);
  return report;
}

Json IncidentsReport(const State& state, Nanos now) {
  Json list = Json::array();
  for (const incident::Incident& incident : AllWithPhases(state, now)) list.push_back(incident::ToJson(incident));
  return list;
}

}  // namespace lockstep::control
