#include "lockstep/node/head.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/control/keepers.h"
#include "lockstep/incident/incident.h"

namespace lockstep::node {
namespace {

constexpr Seconds kStillAdvances{10};
constexpr Seconds kToComeBack{2};   // an agent whose coordinator is there again
constexpr Seconds kUntilWhole{10};  // an update that is asked for at once

}  // namespace

Head::Head(const RunOptions& options, const Clock& clock, Listener listener)
    : options_(options), clock_(clock), listener_(std::move(listener)) {
  if (options_.plan) plan_watch_.emplace(*options_.plan);
}

absl::Status Head::Open() {
  if (options_.metrics_port >= 0) {
    serve::ServerOptions server_options;
    server_options.host = options_.metrics_host;
    server_options.port = options_.metrics_port;
    if (!options_.token_file.empty()) {
      LS_ASSIGN_OR_RETURN(server_options.token, ReadToken(options_.token_file));
    }
    LS_ASSIGN_OR_RETURN(server_, serve::Server::Start(server_options));
    listener_.line(fmt::format("metrics on http://{}:{}/metrics", options_.metrics_host, server_->port()));
  }
  if (!options_.webhook.empty()) {
    LS_ASSIGN_OR_RETURN(webhook_, serve::Webhook::Start({.url = options_.webhook}));
  }
  return absl::OkStatus();
}

absl::Status Head::Begin(const control::JobSpec& job) {
  coordinator_ = std::make_unique<control::Coordinator>(*journal_, clock_);
  LS_ASSIGN_OR_RETURN(const std::vector<control::Command> commands, coordinator_->Handle(control::JobStarted{job}));
  BeginEpochs();
  Carry(commands);
  return absl::OkStatus();
}

absl::Status Head::Resume() {
  LS_ASSIGN_OR_RETURN(control::Coordinator::Resumed resumed, control::Coordinator::Resume(*journal_, clock_));
  coordinator_ = std::move(resumed.coordinator);
  if (state().mode == control::Mode::kFinished) return FailedPrecondition("this run has ended: {}", state().verdict);
  BeginEpochs();
  took_over_ = clock_.Now();
  Carry(resumed.commands);
  return absl::OkStatus();
}

// While loading, the acting epoch is still the coming one.
void Head::BeginEpochs() {
  const control::JobSpec& job = state().spec;
  nodes_.resize(std::max<size_t>(1, job.nodes.size()));
  for (Node& node : nodes_) node.lost_since = clock_.Now();
  fleet_ = std::make_unique<control::Fleet>(control::KeepersOf(job));
  judge_ = std::make_unique<control::Judge>(options_.policy, job.ranks);
  const bool coming = state().mode == control::Mode::kLoading || state().mode == control::Mode::kSpawning;
  const uint64_t epoch = state().epoch.value() - (state().mode == control::Mode::kLoading ? 1 : 0);
  fleet_->Begin(EpochId(epoch), state().in_loop && !state().unseen);
  for (const int vacant : state().vacated) {  // by whoever led before
    nodes_[static_cast<size_t>(vacant)].lost_since = Nanos{};
    (void)fleet_->Vacate(vacant);  // nobody has said anything yet
  }
  if (!coming) judge_->Begin(state().epoch);
}

std::vector<RankId> Head::RanksOf(int node) const {
  std::vector<RankId> ranks;
  const std::vector<control::NodeSpec>& nodes = state().spec.nodes;
  const auto index = static_cast<size_t>(node);
  if (index >= nodes.size()) return ranks;
  int first = 0;
  for (size_t i = 0; i < index; ++i) first += nodes[i].ranks;
  for (int rank = first; rank < first + nodes[index].ranks; ++rank) ranks.emplace_back(rank);
  return ranks;
}

std::string Head::NameOf(int node) const {
  const auto index = static_cast<size_t>(node);
  const std::vector<control::NodeSpec>& nodes = state().spec.nodes;
  return index < nodes.size() ? nodes[index].name : std::to_string(node);
}

// ---- hearing ----

void Head::Hear(int node, const control::Said& said) {
  std::visit([&](const auto& body) { Hear(node, body); }, said);
}

// A scheduler that ends a job signals every node: only a node that asks for the second time means "at once".
void Head::Hear(int node, const control::EventBody& said) {
  if (std::holds_alternative<control::StopAsked>(said)) {
    const bool first = !std::exchange(nodes_[static_cast<size_t>(node)].asked_stop, true);
    if (first && state().mode == control::Mode::kFinishing) return;
  }
  const auto* probed = std::get_if<control::Probed>(&said);
  if (replay_ && probed != nullptr && probed->rung == control::Rung::kReplay) {
    replay_->Refused(node, clock_.Now());
    return TellReplay();
  }
  Handle(fleet_->Hear(node, said));
}
void Head::Hear(int node, const control::RestoreFound& found) {
  Handle(fleet_->Hear(node, found));
  for (const auto& [asked, question] : fleet_->TakeQuestions()) Tell(asked, question);
}

void Head::Hear(int node, const control::KeepsAt& where) {
  fleet_->Hear(node, where);
  for (const int ward : fleet_->WardsOf(node)) TellKeeper(ward);
}

void Head::TellKeeper(int node) {
  const auto keeper = fleet_->KeeperOf(node);
  if (keeper) Tell(node, control::KeepWith{NameOf(keeper->first), keeper->second.host, keeper->second.port});
}

// To look at all nodes at the word of each would be a square of work: when something became whole, at the word of as
// many as there are, and at a tick.
void Head::Hear(int node, const control::Holding& holding) {
  const bool whole = fleet_->Hear(node, holding);
  if (++holdings_ >= nodes_.size() || whole) TellCommit();
}

void Head::TellCommit() {
  if (std::exchange(holdings_, 0) == 0) return;
  if (const std::optional<control::Commit> news = fleet_->CommitNews()) TellAll(*news);
}

void Head::Hear(int node, const control::Samples& samples) {
  fleet_->Hear(node, samples);
  judge_->Add(samples);
  if (samples.progress.step_end > newest_step_end_) {
    newest_step_end_ = samples.progress.step_end;
    advanced_at_ = clock_.Now();
  }
}

void Head::Hear(int index, const control::Observed& observed) {
  Node& node = nodes_[static_cast<size_t>(index)];
  node.observed = observed;
  node.observed_at = clock_.Now();
}

void Head::Hear(int, const control::StoreAt& store) {
  if (!spawn_ || store.epoch != spawn_->epoch || store_) return;
  store_ = store;
  TellSpawn(*spawn_, std::nullopt);
}

// What no node may give up before it has heard of a newer one, which we tell later.
void Head::Hear(int, const control::FlushWanted& wanted) {
  flush_wanted_ = wanted.point;
  FlushIfAllAttend();
}

void Head::FlushIfAllAttend() {
  if (!flush_wanted_ || !std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.attends; }))
    return;
  flushing_ = std::max(*std::exchange(flush_wanted_, std::nullopt), fleet_->commit().point);
  TellAll(control::WritePart{*flushing_});
}

void Head::Hear(int, const control::DiskDone& done) {
  disk_done_ = true;
  TellAll(done);
}

void Head::Hear(int index, const control::AllSaid& said) {
  Node& node = nodes_[static_cast<size_t>(index)];
  node.attends = true;
  node.lost_since = Nanos{};
  if (state().lost_agents.contains(index)) {
    Handle(control::AgentBack{index});
    listener_.line(fmt::format("node {} is back", NameOf(index)));
  }
  if (said.epoch > state().epoch) Handle(control::JournalBehind{said.epoch});
  for (const control::Command& command : control::PendingCommands(state())) {
    if (const auto* spawn = std::get_if<control::Spawn>(&command)) {
      TellSpawn(*spawn, index);
    } else if (const auto* wait = std::get_if<control::WaitForStop>(&command)) {
      const std::vector<int> unstopped = fleet_->Unstopped();
      const bool runs_on = std::find(unstopped.begin(), unstopped.end(), index) != unstopped.end();
      if (runs_on && state().mode == control::Mode::kFinishing) AwaitStop(*wait);  // it has its order from now on
    } else {
      Tell(index, Asked(index, command));
    }
  }
  // What was told while it was away, or what it said of it, may be lost.
  GiveUpPart(index);
  if (nodes_.size() > 1 && !IsAnyAway() && fleet_->MeetAnew()) {
    TellAll(fleet_->commit());
  } else if (nodes_.size() > 1) {
    Tell(index, fleet_->commit());
  }
  if (const auto version = control::VersionToCopy(state())) Tell(index, control::Command(control::KeepCode{*version}));
  TellKeeper(index);
  Tell(index, control::LookClosely{state().epoch, looks_closely_});
  FlushIfAllAttend();
}

void Head::Lost(int index, const std::string& why) {
  Node& node = nodes_[static_cast<size_t>(index)];
  if (!node.attends) return;
  node.attends = false;
  node.lost_since = clock_.Now();
  judge_->Forget(RanksOf(index));  // what they looked like last says nothing about now
  fleet_->Away(index);
  if (state().mode == control::Mode::kFinished) GiveUpPart(index);
  Handle(control::AgentLost{index, NameOf(index), why, clock_.Now()});
}

// ---- handling ----

void Head::Handle(const std::vector<control::EventBody>& events) {
  for (const control::EventBody& event : events) {
    if (std::holds_alternative<control::StacksKept>(event))
      Handle(judge_->AtStacks(state().spec, fleet_->progress(), clock_.Now()));
    Handle(event);
  }
}

void Head::Handle(const control::EventBody& body) {
  std::vector<control::VersionStage> before;
  for (const control::Update& update : state().versions) before.push_back(update.stage);
  auto commands = coordinator_->Handle(body);
  TellStages(before);
  if (commands.ok()) Carry(*commands);
  if (std::holds_alternative<control::StandbyCame>(body) && stuck_deadline_.value == 0) LoseTheStuck();
  if (took_over_ && std::holds_alternative<control::StopAsked>(body)) TellAbsent(clock_.Now());
  LeaveReplay();
}

// What became of versions meanwhile: incidents tell the rest.
void Head::TellStages(const std::vector<control::VersionStage>& before) {
  const std::vector<control::Update>& versions = state().versions;
  for (size_t i = 0; i < versions.size(); ++i) {
    const bool is_news = i >= before.size() || before[i] != versions[i].stage;
    if (!is_news || versions[i].version.number == 0) continue;
    listener_.line(fmt::format("{}: {}", control::VersionText(versions[i].version), control::StageText(versions[i])));
  }
}

Json Head::Update(control::UpdateAsked asked) {
  if (const control::Progress progress = fleet_->progress(); state().in_loop && progress.step_end.value != 0)
    Handle(control::ProgressSeen{state().epoch, progress, judge_->step_time()});  // what it is compared with
  const bool hurries = asked.now && IsUncommitted();
  if (hurries) {
    asked.now = false;
    asked.within = kUntilWhole;
  }
  Handle(asked);
  const control::VersionStage stage = state().versions.back().stage;
  if (hurries && (stage == control::VersionStage::kWaiting || stage == control::VersionStage::kCopying)) {
    hurried_ = state().versions.back().version.number;
    listener_.line(
        fmt::format("version {} waits until a checkpoint is whole on all nodes, for {:g} s at most: a "
                    "restart would cost the steps since the last one",
                    *hurried_, kUntilWhole.value));
  }
  Json versions = Status().value("versions", Json::array());
  return versions.empty() ? Json{{"error", "the coordinator can't write it down any more"}} : versions.back();
}

void Head::Carry(const std::vector<control::Command>& commands) {
  const bool within = std::exchange(carrying_, true);  // our own agent answers at once
  CarryEach(commands);
  if (within) return;
  carrying_ = false;
  Handle(std::exchange(later_, {}));
}

void Head::CarryEach(const std::vector<control::Command>& commands) {
  for (const control::Command& command : commands) {
    if (const auto* spawn = std::get_if<control::Spawn>(&command)) {
      TellSpawn(*spawn, std::nullopt);
    } else if (const auto* wait = std::get_if<control::WaitForCulprit>(&command)) {
      culprit_epoch_ = wait->epoch;
      culprit_deadline_ = clock_.Now() + ToNanos(wait->at_most);
    } else if (const auto* stop = std::get_if<control::WaitForStop>(&command)) {
      AwaitStop(*stop);
    } else if (const auto* ask = std::get_if<control::AskForNodes>(&command)) {
      if (!scheduler_)
        listener_.line(fmt::format("{} machine(s) more are wanted as standbys: a node is to be evicted", ask->count));
    } else if (const auto* seat = std::get_if<control::Seat>(&command)) {
      Seat(*seat);
    } else if (const auto* vacate = std::get_if<control::Vacate>(&command)) {
      Vacate(*vacate);
    } else if (const auto* resize = std::get_if<control::Resize>(&command)) {
      Resize(resize->from);
    } else if (const auto* announce = std::get_if<control::Announce>(&command)) {
      Announce(announce->incident);
    } else if (const auto* probe = std::get_if<control::Probe>(&command)) {
      Ask(*probe);
    } else {
      if (const auto* choose = std::get_if<control::ChooseRestore>(&command)) fleet_->Poison(choose->poisoned);
      if (const auto* kill = std::get_if<control::KillEpoch>(&command)) {
        culprit_deadline_ = Nanos{};
        stuck_deadline_ = clock_.Now() + ToNanos(state().spec.policy.stuck_within);
        fleet_->Begin(kill->epoch);  // one that the journal did not know of
      }
      if (std::holds_alternative<control::Finish>(command)) {
        TellCommit();                                        // the last word on what is whole
        for (size_t node = 0; node < nodes_.size(); ++node)  // nobody waits for it any longer
          if (!nodes_[node].attends) GiveUpPart(static_cast<int>(node));
      }
      TellAll(command);
    }
  }
}

// Whoever had the place is not heard any more, and what ran there counts as gone.
void Head::Seat(const control::Seat& seat) {
  GoOnWithout(seat.node);
  nodes_[static_cast<size_t>(seat.node)].lost_since = clock_.Now();
  listener_.seat(seat);
  HearLater(fleet_->Gone(seat.node));
}

void Head::Vacate(const control::Vacate& vacate) {
  GoOnWithout(vacate.node);
  listener_.vacate(vacate);
  HearLater(fleet_->Vacate(vacate.node));
}

// Commands that are still to be carried out may mean nodes by numbers that change because of this.
void Head::HearLater(const std::vector<control::EventBody>& events) {
  later_.insert(later_.end(), events.begin(), events.end());
}

void Head::GoOnWithout(int index) {
  nodes_[static_cast<size_t>(index)] = Node{};
  judge_->Forget(RanksOf(index));
  if (index == 0) flush_wanted_.reset();
  GiveUpPart(index);
  if (replay_) replay_->Lost(index);
}

// What this node would have written of the checkpoint that goes to disk is not waited for.
void Head::GiveUpPart(int index) {
  if (flushing_ && index != 0) Tell(0, control::PartWritten{*flushing_, index, "", true, ""});
}

// Nothing of the old numbering is left: whoever had a place says all that it knows, as whoever joins.
void Head::Resize(const std::vector<int>& from) {
  std::vector<Node> nodes;
  for (const int before : from) {
    nodes.push_back(before >= 0 ? nodes_[static_cast<size_t>(before)] : Node{});
    nodes.back().observed.ranks.clear();  // under the old numbers
    if (before < 0) nodes.back().lost_since = clock_.Now();
  }
  nodes_ = std::move(nodes);
  flush_wanted_.reset();
  flushing_.reset();
  holdings_ = 0;
  fleet_ = std::make_unique<control::Fleet>(control::KeepersOf(state().spec));
  fleet_->Begin(state().epoch);
  judge_ = std::make_unique<control::Judge>(options_.policy, state().spec.ranks);
  listener_.resize(from);
}

void Head::TellAll(const control::Told& told) {
  for (size_t node = 0; node < nodes_.size(); ++node) Tell(static_cast<int>(node), told);
}

// An agent that does not attend is told what is pending when it does.
void Head::Tell(int node, const control::Told& told) {
  if (nodes_[static_cast<size_t>(node)].attends) listener_.tell(node, told);
}

// The store comes first: on node 0, without which no epoch begins, and where rank 0 is if it must host the store
// itself.
void Head::TellSpawn(const control::Spawn& spawn, std::optional<int> only) {
  fleet_->Begin(spawn.epoch);
  judge_->Begin(spawn.epoch);
  if (!spawn_ || spawn_->epoch != spawn.epoch) {
    spawn_ = spawn;
    store_.reset();
    looks_closely_ = false;
  }
  if (store_) {
    control::Spawn complete = spawn;
    complete.store_host = store_->host;
    complete.store_port = store_->port;
    complete.store_hosted = store_->hosted;
    return only ? Tell(*only, control::Command(complete)) : TellAll(control::Command(complete));
  }
  Tell(0, control::HostStore{spawn.epoch, spawn.restart_count});
}

void Head::Announce(const incident::Incident& incident) {
  std::string line = fmt::format("incident {}: {}", incident.id, incident::Headline(incident));
  if (!incident.actions.empty())
    line += fmt::format("; {}{}", incident.actions.back().done ? "" : "would be: ", incident.actions.back().text);
  if (incident.closed.value != 0) line += " (closed)";
  listener_.line(line);
  if (webhook_) webhook_->Post(incident::ToJson(incident));
}

void Head::WasAway() {
  judge_->LookAfresh();
  for (Node& node : nodes_)
    if (node.lost_since.value != 0) node.lost_since = clock_.Now();
}

// What was waited for has not come in its time.
void Head::EndWaits(Nanos now) {
  const auto is_over = [&](Nanos& deadline) {
    if (deadline.value == 0 || now < deadline) return false;
    deadline = Nanos{};
    return true;
  };
  if (is_over(culprit_deadline_)) Handle(control::SecondaryGraceOver{culprit_epoch_});
  if (is_over(stop_deadline_)) StopIsOverdue();
  if (is_over(stuck_deadline_)) LoseTheStuck();
  if (!is_over(probe_deadline_) || state().mode != control::Mode::kProbing) return;
  std::vector<int> unanswered;
  control::Probed probed = fleet_->Overdue(state().fault.plan.rung, unanswered);
  for (const int node : unanswered) probed.unanswered.push_back(NameOf(node));
  Handle(probed);
}

// A restart has waited long enough for ranks that don't end; those of the epoch of the newest KillEpoch.
void Head::LoseTheStuck() {
  if (state().mode != control::Mode::kStopping) return;
  if (const std::vector<int> stuck = fleet_->Unstopped(); !stuck.empty())
    Handle(control::StopOverdue{state().epoch, stuck});
}

void Head::AwaitStop(const control::WaitForStop& wait) {
  stop_epoch_ = wait.epoch;
  stop_deadline_ = clock_.Now() + ToNanos(wait.at_most);
}

// The end of a job waits for whoever is away until he is back, and then for his processes, or until he counts as gone.
void Head::StopIsOverdue() {
  if (IsAnyAway() && state().mode == control::Mode::kFinishing)
    return AwaitStop({stop_epoch_, state().spec.policy.stuck_within});
  Handle(control::StopOverdue{stop_epoch_, {}, fleet_->Unstopped()});
}

void Head::Tick() {
  if (state().mode == control::Mode::kFinished) return;
  const Nanos now = clock_.Now();
  Handle(control::EventBody(control::Tick{}));
  EndWaits(now);
  if (replay_) {
    replay_->Tick(now);
    TellReplay();
  }
  TellCommit();
  UpdateIfDue(now);
  GrowIfDue(now);
  Handle(judge_->At(state(), fleet_->progress(), now));
  if (const std::string absent = judge_->TakeAbsent(); !absent.empty()) listener_.line(absent);
  CompareWithPlan(now);
  if (judge_->wants_stacks() != looks_closely_) {
    looks_closely_ = judge_->wants_stacks();
    TellAll(control::LookClosely{state().epoch, looks_closely_});
  }
  if (took_over_ && !absent_told_ && now - *took_over_ >= ToNanos(kToComeBack)) TellAbsent(now);
  TellUncommitted(now);
  LookForTheGone(now);
  TickScheduler();
}

// Of a node that is away nobody knows whether its ranks run on: without an agent its starter ends them in a minute.
void Head::TellAbsent(Nanos now) {
  absent_told_ = true;
  const std::vector<std::string> absent = AbsentBeside(-1);
  if (absent.empty()) return;
  Nanos until;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (const Nanos since = nodes_[i].lost_since; since.value != 0)
      until = std::max(until, control::GoneAt(state(), static_cast<int>(i), since));
  listener_.line(fmt::format("the agent{} of node {} {} not come back: waits until {}, for the ranks there may run on",
                             absent.size() == 1 ? "" : "s", fmt::join(absent, ", "),
                             absent.size() == 1 ? "has" : "have", IsoTime(clock_.WallNow() + (until - now))));
}

// On several nodes, of which each may keep a checkpoint from becoming whole.
bool Head::Trains() const { return nodes_.size() > 1 && state().mode == control::Mode::kRunning && !state().unseen; }

bool Head::IsAnyAway() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.lost_since.value != 0; });
}

std::vector<std::string> Head::AbsentBeside(int node) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].lost_since.value != 0 && static_cast<int>(i) != node) names.push_back(NameOf(static_cast<int>(i)));
  return names;
}

// Ranks train on, and whoever reads must know what a fault would cost by now.
void Head::TellUncommitted(Nanos now) {
  const bool for_long = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return node.lost_since.value != 0 && now - node.lost_since >= ToNanos(kToComeBack);
  });
  if (!for_long) uncommitted_told_ = false;
  if (!Trains() || !for_long || std::exchange(uncommitted_told_, true)) return;
  std::optional<control::CheckpointId> newest;
  for (const Node& node : nodes_) newest = std::max(newest, node.observed.committed);
  const std::string since = newest ? fmt::format("the steps since {}", newest->step) : "all that was computed";
  listener_.line(fmt::format("no checkpoint becomes whole while the agent of node {} is away: a fault now costs {}",
                             fmt::join(AbsentBeside(-1), ", "), since));
}

// While the others step, the ranks of a node that is away step with them: only its agent is. Of a job that is only
// observed, the user's stop alone waits for those that are gone.
void Head::LookForTheGone(Nanos now) {
  const bool only_looks_on = state().spec.observe_only && state().mode != control::Mode::kFinishing;
  if (now - advanced_at_ < ToNanos(kStillAdvances) || only_looks_on) return;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const int index = static_cast<int>(i);
    const Nanos since = nodes_[i].lost_since;
    if (since.value == 0 || now < control::GoneAt(state(), index, since)) continue;
    nodes_[i].lost_since = Nanos{};
    const std::vector<control::NodeSpec> before = state().spec.nodes;
    if (state().spec.can_ask && !state().lost_agents.contains(index))
      Handle(control::AgentLost{index, NameOf(index), "it has not come to this coordinator", since});
    std::string why = fmt::format("its agent has not been heard of for {:.0f} s", ToSeconds(now - since).value);
    if (const auto others = AbsentBeside(index); !others.empty() && control::IsEnd(state(), index, now))
      why += fmt::format("; nor of node {}", fmt::join(others, ", "));
    Handle(control::AgentGone{index, why});
    if (state().spec.nodes != before) return;  // this number may be another one's now
    if (state().awaited.contains(index)) nodes_[i].lost_since = since;
    if (state().mode == control::Mode::kFinishing) Handle(fleet_->Gone(index));
  }
}

// Some agent is away, or was, and since it is back none has become whole.
bool Head::IsUncommitted() const {
  return Trains() && (IsAnyAway() || fleet_->commit().point.step < fleet_->commit().meet_from);
}

void Head::UpdateIfDue(Nanos now) {
  if (const std::optional<int> due = control::UpdateThatIsDue(state(), now)) Handle(control::UpdateDue{*due});
  if (!hurried_ || IsUncommitted()) return;
  const control::VersionStage stage = state().versions[static_cast<size_t>(*hurried_)].stage;
  if (stage == control::VersionStage::kCopying) return;
  if (stage == control::VersionStage::kWaiting) Handle(control::UpdateDue{*hurried_});
  hurried_.reset();
}

// Not before a checkpoint of this epoch is whole everywhere: less than the steps since then would be lost in vain.
void Head::GrowIfDue(Nanos now) {
  const std::optional<control::CheckpointId>& committed = nodes_.front().observed.committed;
  const bool is_kept = committed && committed->epoch == state().epoch;
  if (is_kept && control::IsGrowthDue(state(), now)) Handle(control::GrowthDue{state().epoch});
}

void Head::CompareWithPlan(Nanos now) {
  if (!plan_watch_ || state().paused || !state().in_loop) return;
  const auto finding =
      plan_watch_->At(judge_->step_time(), state().spec.ranks, now, [&] { return judge_->in_collectives(); });
  if (finding) Handle(control::Suspected{state().epoch, *finding, fleet_->progress()});
}

void Head::TickScheduler() {
  if (!scheduler_) return;
  for (const control::ClusterDid& did : scheduler_->Tick(state())) {
    did.incident != 0 ? Handle(control::EventBody(did)) : listener_.line(did.text);  // an incident is announced
  }
}

void Head::NoteUnreadable(const absl::Status& why) {
  if (unreadable_++ == 0) listener_.line(fmt::format("an agent said what can't be read: {}", Message(why)));
}

void Head::Drain() {
  if (webhook_ && !webhook_->Drain(Seconds{2})) listener_.line("some incidents did not reach the webhook");
  if (scheduler_) scheduler_->End(state(), listener_.line);
}

// ---- showing ----

Json Head::Status() const {
  std::vector<control::Observed> observed;
  observed.reserve(nodes_.size());
  const Nanos now = clock_.Now();
  for (const Node& node : nodes_)
    observed.push_back(node.attends ? node.observed : control::OutOfReach(node.observed, now - node.observed_at));
  Json status = control::StatusReport(state(), control::Together(observed), now);
  Json nodes = Json::array();
  const std::vector<control::NodeSpec>& names = state().spec.nodes;
  for (size_t i = 0; i < names.size(); ++i)
    nodes.push_back(
        {{"name", names[i].name}, {"ranks", names[i].ranks}, {"agent", nodes_[i].attends ? "here" : "lost"}});
  status["nodes"] = nodes;
  if (nodes_.size() > 1) status["checkpoint"]["waits_for"] = AbsentBeside(-1);
  if (plan_watch_) status["plan"] = plan_watch_->Report(judge_->step_time(), state().spec.ranks);
  status["journal_errors"] = coordinator_->journal_errors();
  status["unreadable_messages"] = unreadable_;
  if (scheduler_) status["cluster"] = scheduler_->Status();
  if (webhook_) status["webhook"] = serve::ToJson(webhook_->counts());
  return status;
}

Json Head::Incidents() const { return control::IncidentsReport(state(), clock_.Now()); }

void Head::Publish() {
  if (server_) server_->Publish(Status(), Incidents());
}

}  // namespace lockstep::node
