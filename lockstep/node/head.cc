#include "lockstep/node/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/agent/last_watched.h"
#include "lockstep/base/clean.h"
#include "lockstep/base/file.h"
#include "lockstep/base/host.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/incident/incident.h"

namespace lockstep::node {
namespace {

using control::kToComeBack;

}  // namespace

Head::Head(const RunOptions& options, const Clock& clock, Listener listener)
    : options_(options), clock_(clock), listener_(std::move(listener)) {
  if (options_.plan) plan_watch_.emplace(*options_.plan);
}

// Workers that run are not left because a port has been taken meanwhile, or a file has gone.
absl::Status Head::Open() {
  for (const absl::Status& opened : {OpenServer(), OpenWebhook()}) {
    if (opened.ok()) continue;
    if (!options_.resumes) return opened;
    listener_.line(fmt::format("goes on without: {}", Message(opened)));
  }
  return absl::OkStatus();
}

absl::Status Head::OpenServer() {
  if (options_.metrics_port < 0) return absl::OkStatus();
  serve::ServerOptions server_options;
  server_options.host = options_.metrics_host;
  server_options.port = options_.metrics_port;
  if (!options_.token_file.empty()) {
    LS_ASSIGN_OR_RETURN(server_options.token, ReadToken(options_.token_file));
  }
  LS_ASSIGN_OR_RETURN(server_, serve::Server::Start(server_options));
  listener_.line(fmt::format("metrics on http://{}:{}/metrics", options_.metrics_host, server_->port()));
  return absl::OkStatus();
}

absl::Status Head::OpenWebhook() {
  if (options_.webhook.empty()) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(webhook_, serve::Webhook::Start({.url = options_.webhook}));
  return absl::OkStatus();
}

absl::Status Head::Begin(const control::JobSpec& job) {
  coordinator_ = std::make_unique<control::Coordinator>(*journal_, clock_);
  LS_ASSIGN_OR_RETURN(const std::vector<control::Command> commands, coordinator_->Handle(control::JobStarted{job}));
  Lead(commands);
  return absl::OkStatus();
}

absl::Status Head::Resume() {
  LS_ASSIGN_OR_RETURN(control::Coordinator::Resumed resumed,
                      control::Coordinator::Resume(*journal_, clock_, agent::LastWatched(options_.run_dir)));
  coordinator_ = std::move(resumed.coordinator);
  if (state().mode == control::Mode::kFinished) return FailedPrecondition("this run has ended: {}", state().verdict);
  took_over_ = clock_.Now();
  Lead(resumed.commands);
  return absl::OkStatus();
}

void Head::Lead(const std::vector<control::Command>& commands) {
  judge_ = std::make_unique<control::Judge>(options_.hang_limits, state().spec.ranks);
  const bool coming = state().mode == control::Mode::kLoading || state().mode == control::Mode::kSpawning;
  if (!coming) judge_->Begin(state().epoch);
  const auto before = std::exchange(
      conductor_,
      std::make_unique<control::Conductor>(
          state(), clock_,
          control::Conductor::Listener{.decide = [this](const control::EventBody& body) { return Decide(body); },
                                       .tell = listener_.tell,
                                       .carried =
                                           [this](const control::Command& command) {
                                             std::visit([&](const auto& body) { Carried(body); }, command);
                                           }}));
  conductor_->Begin(commands, before.get());
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

// The journal is to have first who has which place from now on. Nobody was heard meanwhile, so all is as if we had just
// taken over.
void Head::AwaitJournal() {
  const auto held = coordinator_->Handle(control::Tick{});
  if (!held.ok() || coordinator_->holds()) return;
  Lead(control::PendingCommands(state()));
  for (const control::Command& command : *held) std::visit([this](const auto& body) { Carried(body); }, command);
  listener_.anew();
}

// ---- hearing, and what follows ----

void Head::Hear(int node, const control::Said& said) {
  if (coordinator_->holds()) {
    const auto* event = std::get_if<control::EventBody>(&said);
    const bool of_a_user = event != nullptr && (std::holds_alternative<control::StopAsked>(*event) ||
                                                std::holds_alternative<control::Drilled>(*event));
    if (of_a_user) Handle(*event);
    return;
  }
  if (const auto* samples = std::get_if<control::Samples>(&said)) judge_->Add(*samples);
  if (const auto* seen = std::get_if<control::CommunicationSeen>(&said)) judge_->Add(*seen);
  if (const auto* stacks = std::get_if<control::StacksSeen>(&said)) judge_->Add(node, *stacks);
  conductor_->Hear(node, said);
  if (std::holds_alternative<control::AllSaid>(said))
    conductor_->Tell(node, control::LookClosely{state().epoch, looks_closely_});
}

void Head::LeftUs(int node) {
  if (!coordinator_->holds()) conductor_->LeftUs(node);
}

void Head::Lost(int node, const std::string& why, Seconds silence) {
  if (coordinator_->holds()) return;
  judge_->Forget(RanksOf(node));  // what they looked like last says nothing about now
  conductor_->Lost(node, why, silence);
}

std::vector<control::Command> Head::Decide(const control::EventBody& body) {
  if (std::holds_alternative<control::StacksKept>(body))
    for (const control::EventBody& event : judge_->AtStacks(state().spec, conductor_->fleet().progress(), clock_.Now()))
      Handle(event);
  const std::vector<control::Update> before = state().versions;
  auto commands = coordinator_->Handle(body);
  TellVersions(before);
  if (const auto* back = std::get_if<control::AgentBack>(&body))
    listener_.line(fmt::format("node {} is back", conductor_->NameOf(back->node)));
  if (std::holds_alternative<control::StopAsked>(body)) TellAbsent(clock_.Now());
  return commands.ok() ? *std::move(commands) : std::vector<control::Command>();
}

// What became of versions meanwhile: incidents tell the rest.
void Head::TellVersions(const std::vector<control::Update>& before) {
  const std::vector<control::Update>& versions = state().versions;
  if (versions[0].why != before[0].why && !versions[0].why.empty())
    listener_.line(fmt::format("version 0: {}", versions[0].why));
  for (size_t i = 1; i < versions.size(); ++i) {
    if (i < before.size() && before[i].stage == versions[i].stage) continue;
    listener_.line(fmt::format("{}: {}", control::VersionText(versions[i].version), control::StageText(versions[i])));
  }
}

absl::Status Head::CheckHears() const {
  if (!coordinator_->holds()) return absl::OkStatus();
  return Unavailable("the job waits for its journal, which cannot be written: ask again");
}

Json Head::Update(control::UpdateAsked asked) {
  if (const absl::Status hears = CheckHears(); !hears.ok()) return {{"error", Message(hears)}};
  const control::Progress progress = conductor_->fleet().progress();
  if (state().in_loop && progress.step_end.value != 0)
    Handle(control::ProgressSeen{state().epoch, progress, judge_->step_time()});  // what it is compared with
  const bool hurries = asked.now && conductor_->IsUncommitted();
  if (hurries) {
    asked.now = false;
    asked.within = control::kUntilWhole;
  }
  asked.takes_back = true;
  Handle(asked);
  const control::Update& newest = state().versions.back();
  if (hurries && newest.stage != control::VersionStage::kDropped) {
    hurried_ = newest.version.number;
    listener_.line(
        fmt::format("version {} waits until a checkpoint is whole on all nodes, for {:g} s at most: a "
                    "restart would cost the steps since the last one",
                    *hurried_, control::kUntilWhole.value));
  }
  Json versions = Status().value("versions", Json::array());
  return versions.empty() ? Json{{"error", "the coordinator can't write it down any more"}} : versions.back();
}

void Head::Carried(const control::Spawn& spawn) {
  judge_->Begin(spawn.epoch);
  looks_closely_ = false;
}

void Head::Carried(const control::Seat& seat) {
  judge_->Forget(RanksOf(seat.node));
  ForgetStandby(seat.standby.token);
  listener_.seat(seat);
}

void Head::Carried(const control::Vacate& vacate) {
  judge_->Forget(RanksOf(vacate.node));
  listener_.vacate(vacate);
}

void Head::Carried(const control::Resize& resize) {
  judge_ = std::make_unique<control::Judge>(options_.hang_limits, state().spec.ranks);
  for (const control::NodeSpec& node : state().spec.nodes) ForgetStandby(node.token);
  listener_.resize(resize.from);
}

void Head::Carried(const control::AskForNodes& ask) {
  if (scheduler_) return;
  listener_.line(fmt::format("{} machine(s) more are wanted as standbys: a node is to be evicted", ask.count));
}

void Head::Carried(const control::Announce& announce) {
  const incident::Incident& incident = announce.incident;
  std::string line = fmt::format("incident {}: {}", incident.id, incident::Headline(incident));
  if (!incident.actions.empty())
    line += fmt::format("; {}{}", incident.actions.back().done ? "" : "would be: ", incident.actions.back().text);
  if (incident.closed.value != 0) line += " (closed)";
  listener_.line(Clean(line));
  if (webhook_) webhook_->Post(Posted(incident));
}

// One channel may hear of many runs.
Json Head::Posted(const incident::Incident& incident) const {
  Json posted = {{"job", state().spec.name}, {"run", options_.run_dir}, {"host", HostName()}};
  posted.update(incident::ToJson(incident));
  return posted;
}

void Head::WasAway(Nanos away) {
  LookAfresh();
  conductor_->WasAway(away);
}

void Head::Tick() {
  if (state().mode == control::Mode::kFinished) return;
  if (coordinator_->holds()) return AwaitJournal();
  const Nanos now = clock_.Now();
  if (took_over_ && !absent_told_ && now - *took_over_ >= ToNanos(kToComeBack)) TellAbsent(now);
  TellUncommitted(now);
  TellRest(now);
  conductor_->Tick();
  if (coordinator_->holds()) return;  // nobody is told anything before the journal
  Hurry(now);
  TickJudge(now);
  CompareWithPlan(now);
  TickScheduler();
}

void Head::TickJudge(Nanos now) {
  for (const control::EventBody& event : judge_->At(state(), conductor_->fleet().progress(), now)) Handle(event);
  if (const std::string absent = judge_->TakeAbsent(); !absent.empty()) listener_.line(absent);
  if (judge_->wants_stacks() == looks_closely_) return;
  looks_closely_ = judge_->wants_stacks();
  conductor_->TellAll(control::LookClosely{state().epoch, looks_closely_});
}

// Of a node that is away nobody knows whether its ranks run on: without an agent its starter ends them in a minute.
void Head::TellAbsent(Nanos now) {
  absent_told_ = true;
  const std::vector<std::string> absent = conductor_->LostBeside(-1);
  if (absent.empty()) return;
  listener_.line(
      fmt::format("the agent{} of node {} {} not come back: waits until {}, for the ranks there may run on; "
                  "`lockstep run --resume` there goes on with them",
                  absent.size() == 1 ? "" : "s", fmt::join(absent, ", "), absent.size() == 1 ? "has" : "have",
                  IsoTime(clock_.WallNow() + (conductor_->GoneBy() - now))));
}

// All that is left of the job is where nobody watches.
void Head::TellRest(Nanos now) {
  const Nanos since = conductor_->LostSince();
  const bool for_long = since.value != 0 && now - since >= ToNanos(kToComeBack);
  const bool only = for_long && !state().exits.empty() && HaveAttendedLeft();
  if (!std::exchange(rest_told_, only) && only) TellAbsent(now);
}

// The ranks of all nodes but those that are away.
bool Head::HaveAttendedLeft() const {
  for (int node = 0; node < conductor_->nodes(); ++node) {
    if (!conductor_->Attends(node)) continue;
    for (const RankId rank : RanksOf(node))
      if (!state().exits.contains(rank)) return false;
  }
  return true;
}

// Ranks train on, and whoever reads must know what a fault would cost by now.
void Head::TellUncommitted(Nanos now) {
  const Nanos since = conductor_->LostSince();
  const bool for_long = since.value != 0 && now - since >= ToNanos(kToComeBack);
  if (!for_long) uncommitted_told_ = false;
  if (!for_long || !conductor_->IsUncommitted() || std::exchange(uncommitted_told_, true)) return;
  std::optional<control::CheckpointId> newest;
  for (int node = 0; node < conductor_->nodes(); ++node)
    newest = std::max(newest, conductor_->observed(node).committed);
  const std::string cost = newest ? fmt::format("the steps since {}", newest->step) : "all that was computed";
  listener_.line(fmt::format("no checkpoint becomes whole while the agent of node {} is away: a fault now costs {}",
                             fmt::join(conductor_->LostBeside(-1), ", "), cost));
}

// It need not wait any longer.
void Head::Hurry(Nanos now) {
  if (!hurried_) return;
  const control::Update& update = state().versions[static_cast<size_t>(*hurried_)];
  const bool waits = conductor_->IsUncommitted() && now < update.deadline;
  if (waits || update.stage == control::VersionStage::kCopying) return;
  const int version = *std::exchange(hurried_, std::nullopt);
  if (update.stage == control::VersionStage::kWaiting) Handle(control::UpdateDue{version});
}

void Head::CompareWithPlan(Nanos now) {
  if (!plan_watch_ || state().paused || !state().in_loop) return;
  const auto finding =
      plan_watch_->At(judge_->step_time(), state().spec.ranks, now, [&] { return judge_->in_collectives(); });
  if (finding) Handle(control::Suspected{state().epoch, *finding, conductor_->fleet().progress()});
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
  const std::vector<control::NodeSpec>& specs = state().spec.nodes;
  std::vector<control::Observed> observed;
  const Nanos now = clock_.Now();
  Json nodes = Json::array();
  for (int node = 0; node < conductor_->nodes(); ++node) {
    const bool attends = conductor_->Attends(node);
    const control::Observed& newest = conductor_->observed(node);
    observed.push_back(attends ? newest : control::OutOfReach(newest, now - conductor_->observed_at(node)));
    if (static_cast<size_t>(node) >= specs.size()) continue;
    const control::NodeSpec& spec = specs[static_cast<size_t>(node)];
    nodes.push_back({{"name", spec.name}, {"ranks", spec.ranks}, {"agent", attends ? "here" : "lost"}});
  }
  control::Observed all = control::Together(observed, conductor_->counted_before());
  all.standbys = standbys_;
  Json status = control::StatusReport(state(), all, now);
  status["nodes"] = nodes;
  if (conductor_->nodes() > 1) status["checkpoint"]["waits_for"] = conductor_->WaitsFor();
  if (plan_watch_) status["plan"] = plan_watch_->Report(judge_->step_time(), state().spec.ranks);
  if (coordinator_->holds()) status["trouble"] = coordinator_->WhyItHolds();
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
