#include "lockstep/node/lead.h"

#include <algorithm>

#include "lockstep/agent/spec.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/node/endpoint.h"
#include "lockstep/rpc/client.h"

namespace lockstep::node {
namespace {

constexpr Seconds kHeartbeat{0.5};
constexpr Seconds kQuiet{1.5};    // an agent says something once a second
constexpr Seconds kStalled{1.5};  // between two ticks: this process was stopped, and its agents are not to blame
// So long between two ticks that agents, whose last word from us may be older, have given us up; they come anew soon.
constexpr Seconds kGivenUp{0.75 * rpc::kSilence.value}, kComeAnew{2};

// What its agent is told, should it come back.
std::string ReasonOf(const control::Eviction& eviction) {
  if (eviction.standby.empty()) return fmt::format("the job went on without it ({})", eviction.why);
  return fmt::format("standby {} has its place ({})", eviction.standby, eviction.why);
}

}  // namespace

Lead::Lead(const RunOptions& options, Poller& poller, const Clock& clock, Listener listener)
    : options_(options),
      poller_(poller),
      clock_(clock),
      listener_(std::move(listener)),
      head_(options, clock,
            {.tell = [this](int node, const control::Told& told) { Tell(node, told); },
             .seat = [this](const control::Seat& seat) { Seat(seat); },
             .vacate = [this](const control::Vacate& vacate) { Vacate(vacate); },
             .resize = [this](const std::vector<int>& from) { Resize(from); },
             .anew = [this] { BeginAnew(); },
             .line = listener_.line}) {}

absl::Status Lead::Open() {
  if (!options_.resumes) LS_RETURN_IF_ERROR(Scheduler::Check(options_));  // else it is said, and goes without
  if (!options_.nodes.endpoint.empty()) {
    const Endpoint endpoint = ParseEndpoint(options_.nodes.endpoint).value_or(Endpoint{});
    LS_ASSIGN_OR_RETURN(
        server_, rpc::Server::Start(ListenAddress(endpoint), poller_, clock_,
                                    {.joined = [this](Peer peer, const control::Join& join) { Joined(peer, join); },
                                     .said = [this](Peer peer, const control::Said& said) { Said(peer, said); },
                                     .left = [this](Peer peer) { Left(peer, "its connection was lost"); },
                                     .unreadable = [this](const absl::Status& why) { head_.NoteUnreadable(why); }}));
  }
  return head_.Open();
}

absl::Status Lead::KeepIn(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(auto journal,
                      store::OpenSqliteJournal(run_dir + "/" + agent::kJournalFile, store::JournalMode::kWrite));
  head_.Keep(std::move(journal));
  return absl::OkStatus();
}

void Lead::Keep(std::unique_ptr<store::PostgresJournal> journal) {
  shared_ = journal.get();
  head_.Keep(std::move(journal));
}

void Lead::Await(const control::JobSpec& job, const std::string& run_token) {
  job_ = job;
  UseRoster(std::make_unique<control::Roster>(run_token, options_.nodes.expected));
  awaited_ = clock_.Now();
}

absl::Status Lead::Resume(const std::string& run_token) {
  LS_RETURN_IF_ERROR(head_.Resume());
  const control::State& state = head_.state();
  UseRoster(std::make_unique<control::Roster>(
      run_token, state.spec.nodes,
      control::Expected{state.spec.least_nodes, state.spec.most_nodes, state.spec.standbys}));
  UseScheduler(state.spec.name);
  for (const control::Eviction& eviction : state.evictions) roster_->Refuse(eviction.node.token, ReasonOf(eviction));
  begun_ = true;
  return absl::OkStatus();
}

void Lead::UseRoster(std::unique_ptr<control::Roster> roster) {
  roster_ = std::move(roster);
  roster_->AskWhoAttends([this](int node) { return node == own_node_ || peers_.contains(node); });
  roster_->AskWhoIsFit(
      [this](const control::NodeSpec& standby) { return control::WhyUnfit(head_.state(), standby).empty(); });
}

absl::Status Lead::Attend(const control::Join& own) {
  own_token_ = own.token;
  LS_RETURN_IF_ERROR(roster_->Admit(own, clock_.Now()));
  if (begun_) {
    own_node_ = roster_->PlaceOf(own_token_).node;
    listener_.moved(roster_->PlaceOf(own_token_));
  }
  BeginIfComplete();
  if (!begun_) listener_.line(fmt::format("waiting at {}: {}", options_.nodes.endpoint, roster_->Progress()));
  return absl::OkStatus();
}

// Of a world that may change, the layout grows and shrinks with it, and may fit another one.
void Lead::SettleLayout() {
  const absl::StatusOr<cluster::Layout> layout = cluster::LayoutFromJson(job_.layout);
  if (job_.layout.empty() || !layout.ok()) return;
  const absl::Status fits = layout->CheckRanks(job_.ranks);
  if (fits.ok()) return;
  const bool changes = job_.most_nodes > 0;
  if (const auto resized = layout->WithRanks(job_.ranks); changes && resized) {
    job_.layout = cluster::LayoutJson(*resized);
    return;
  }
  listener_.line(fmt::format("the job file is not followed in its [layout]: {}", Message(fits)));
  if (!changes) job_.layout.clear();
}

void Lead::BeginIfComplete() {
  if (begun_ || !roster_ || !roster_->IsComplete(clock_.Now())) return;
  begun_ = true;
  job_.nodes = roster_->nodes();
  job_.ranks = 0;
  for (const control::NodeSpec& node : job_.nodes) job_.ranks += node.ranks;
  job_.first_epoch = roster_->first_epoch();
  job_.layout = roster_->layout();
  job_.entry = roster_->entry();
  if (job_.name.empty()) job_.name = roster_->job().empty() ? "coordinator" : roster_->job();
  const control::Expected count = roster_->count();
  if (count.least_nodes < count.most_nodes) {
    job_.least_nodes = count.least_nodes;
    job_.most_nodes = count.most_nodes;
  }
  SettleLayout();
  job_.load_first = job_.first_epoch.value() > 1;
  if (!own_token_.empty()) job_.leading_node = roster_->PlaceOf(own_token_).node;
  absl::Status status = head_.Begin(job_);
  UseScheduler(job_.name);
  for (auto& [peer, agent] : agents_) Welcome(peer, agent);
  if (const control::Place own = roster_->PlaceOf(own_token_); status.ok() && own.node != control::kStandby) {
    own_node_ = own.node;
    status = listener_.placed(own);
  }
  if (!status.ok()) listener_.failed(status);
}

void Lead::GiveUpIfTooLate() {
  const Seconds patience = options_.nodes.join_timeout;
  if (begun_ || !roster_ || roster_->HasEnough() || clock_.Now() - awaited_ < ToNanos(patience)) return;
  const std::string why = fmt::format("not all nodes came within {} s: {}", patience.value, roster_->Progress());
  for (const auto& [peer, agent] : agents_) server_->Refuse(peer, why);
  listener_.failed(MakeError(absl::StatusCode::kDeadlineExceeded, why));
}

void Lead::UseScheduler(const std::string& job) {
  auto scheduler = Scheduler::Start(options_, job, roster_->run());
  if (!scheduler.ok()) return listener_.line(Message(scheduler.status()));
  head_.Use(*std::move(scheduler));
}

void Lead::Welcome(Peer peer, Agent& agent) {
  const control::Place place = roster_->PlaceOf(agent.spec.token);
  agent.node = place.node;
  if (place.node != control::kStandby) peers_[place.node] = peer;
  server_->Welcome(peer, place, roster_->run(), shared_ ? shared_->term().number : 0);
  if (place.node == control::kStandby) head_.Handle(control::StandbyCame{agent.spec});
}

// The state machine has given the place to a standby.
void Lead::Seat(const control::Seat& seat) {
  const std::string why = WhyOut(roster_->nodes()[static_cast<size_t>(seat.node)].token);
  roster_->Seat(seat.node, seat.standby, why);
  TurnOut(seat.node, why);
  for (auto& [peer, agent] : agents_) {
    if (agent.spec.token == seat.standby.token) return Welcome(peer, agent);
  }
}

// Several may go at once.
std::string Lead::WhyOut(const std::string& token) const {
  const std::vector<control::Eviction>& evictions = head_.state().evictions;
  const auto eviction = std::find_if(evictions.rbegin(), evictions.rend(),
                                     [&](const control::Eviction& one) { return one.node.token == token; });
  return eviction != evictions.rend() ? ReasonOf(*eviction) : "its place was given away";
}

void Lead::TurnOut(int node, const std::string& why) {
  if (const auto old = peers_.extract(node); !old.empty()) {
    agents_.erase(old.mapped());
    server_->Refuse(old.mapped(), "this node is out of the job: " + why);
  }
}

// Nobody has the place of this node, and it is refused from now on.
void Lead::Vacate(const control::Vacate& vacate) {
  const std::string why = WhyOut(vacate.left.token);
  roster_->Refuse(vacate.left.token, why);
  TurnOut(vacate.node, why);
}

// All are told their places in the world to come, and say again all that they know.
void Lead::Resize(const std::vector<int>& from) {
  const std::vector<control::NodeSpec>& nodes = head_.state().spec.nodes;
  roster_->Resize(nodes);
  const auto own = std::find(from.begin(), from.end(), own_node_);
  if (own_node_ >= 0) own_node_ = static_cast<int>(own - from.begin());
  peers_.clear();
  for (const auto& [before, why] : std::exchange(left_us_, {}))
    if (const auto now = std::find(from.begin(), from.end(), before); now != from.end())
      left_us_[static_cast<int>(now - from.begin())] = why;
  if (own_node_ >= 0) listener_.moved(roster_->PlaceOf(own_token_));
  for (auto& [peer, agent] : agents_)
    if (roster_->PlaceOf(agent.spec.token).node != control::kStandby) Welcome(peer, agent);
}

// Who stands by may have come or gone, too.
void Lead::BeginAnew() {
  left_us_.clear();
  const std::vector<control::NodeSpec> standbys = head_.state().standbys;
  for (const control::NodeSpec& standby : standbys) head_.Handle(control::StandbyLeft{standby.token});
  if (own_node_ >= 0) listener_.moved(roster_->PlaceOf(own_token_));
  for (auto& [peer, agent] : agents_) Welcome(peer, agent);
}

// ---- the agents of other nodes ----

void Lead::Joined(Peer peer, const control::Join& join) {
  if (const auto known = agents_.find(peer); known != agents_.end()) {  // it waits, and says so
    known->second.heard = clock_.Now();
    return;
  }
  // The same agent again: its old stream is dead, and only we have not heard of it yet.
  for (auto it = agents_.begin(); it != agents_.end();) {
    const Peer old = it->first;
    const bool same = it++->second.spec.token == join.token;
    if (!same) continue;
    server_->Drop(old);
    Left(old, "it came anew");
  }
  if (!roster_) return server_->TurnAway(peer, "it does not lead: it stands in for another coordinator");
  if (shared_ && join.term > shared_->term().number)
    return server_->TurnAway(peer, "another coordinator has led since");
  if (const absl::Status ours = roster_->CheckRun(join); !ours.ok()) {
    if (strangers_.insert(join.token).second) listener_.line(fmt::format("sent elsewhere: {}", Message(ours)));
    return server_->SendElsewhere(peer, Message(ours));
  }
  if (AwaitsLossOf(join.name, clock_.Now()))
    return server_->TurnAway(peer, fmt::format("node {} is to be taken for lost first", join.name));
  roster_->Welcome(head_.machines_wanted());
  if (const absl::Status admitted = roster_->Admit(join, clock_.Now()); !admitted.ok()) {
    listener_.line(fmt::format("refused: {}", Message(admitted)));
    return server_->Refuse(peer, Message(admitted));
  }
  Agent& agent = agents_[peer] = {{join.name, join.ranks, join.token}, control::kStandby, clock_.Now()};
  if (begun_) return Welcome(peer, agent);
  listener_.line(roster_->Progress());
  BeginIfComplete();
}

// A machine that went without a word is not known to be gone yet, and may be back already.
bool Lead::AwaitsLossOf(const std::string& name, Nanos now) const {
  return std::any_of(agents_.begin(), agents_.end(), [&](const auto& one) {
    return one.second.spec.name == name && now - one.second.heard >= ToNanos(kQuiet);
  });
}

void Lead::Said(Peer peer, const control::Said& said) {
  const auto agent = agents_.find(peer);
  if (agent == agents_.end()) return;
  agent->second.heard = clock_.Now();
  if (agent->second.node != control::kStandby) return head_.Hear(agent->second.node, said);
  if (const auto* observed = std::get_if<control::Observed>(&said))
    head_.HearOfStandby(agent->second.spec.token, observed->start_method);
  const auto* event = std::get_if<control::EventBody>(&said);
  if (const auto* alert = event != nullptr ? std::get_if<control::Alerted>(event) : nullptr; alert && begun_)
    HearOfStandby(agent->second.spec, *alert);
}

// It has no place in which to be named, but may be the next to get one.
void Lead::HearOfStandby(const control::NodeSpec& standby, control::Alerted alert) {
  const std::string before = control::WhyUnfit(head_.state(), standby);
  alert.node = control::kStandby;
  alert.token = standby.token;
  head_.Handle(alert);
  const std::string now = control::WhyUnfit(head_.state(), standby);
  if (before.empty() && !now.empty())
    listener_.line(fmt::format("standby {} is passed over while another one can be had: {}", standby.name, now));
  if (!before.empty() && now.empty()) listener_.line(fmt::format("standby {} is fit again", standby.name));
}

void Lead::Left(Peer peer, const std::string& why, Seconds silence) {
  const auto agent = agents_.extract(peer);
  if (agent.empty()) return;  // it was refused
  if (begun_ && agent.mapped().node >= 0) {
    peers_.erase(agent.mapped().node);
    if (head_.state().mode == control::Mode::kFinished) departed_.insert(agent.mapped().node);
    LookWhetherStopped();
    if (IsJustBack()) {
      left_us_.emplace(agent.mapped().node, why);
      return head_.LeftUs(agent.mapped().node);
    }
    return head_.Lost(agent.mapped().node, why, silence);
  }
  const control::NodeSpec& node = agent.mapped().spec;
  roster_->Leave(node.token);
  head_.ForgetStandby(node.token);
  if (begun_) return head_.Handle(control::StandbyLeft{node.token});
  listener_.line("a node left: " + roster_->Progress());
}

// While this process was stopped agents heard nothing, and gave it up.
void Lead::LookWhetherStopped() {
  const Nanos now = clock_.Now();
  if (ticked_.value == 0 || now - ticked_ < ToNanos(kGivenUp)) return;
  if (!IsJustBack()) stopped_ = ticked_;
  back_ = now;
}

bool Lead::IsJustBack() const { return back_.value != 0 && clock_.Now() - back_ < ToNanos(kComeAnew); }

// It was this process that was away; who does not come anew has other reasons.
void Lead::TellWhoStayedAway() {
  if (left_us_.empty()) return;
  if (const Nanos since = std::exchange(stopped_, Nanos{}); since.value != 0)
    head_.Handle(control::WatcherGone{since, true});
  if (IsJustBack()) return;
  for (const auto& [node, why] : std::exchange(left_us_, {}))
    if (!peers_.contains(node)) head_.Lost(node, why);
}

// ---- both ----

void Lead::Hear(const control::Said& said) { head_.Hear(own_node_, said); }

bool Lead::HaveAllHeard() const {
  const size_t others = head_.state().spec.nodes.size() - (own_node_ >= 0 ? 1 : 0);
  return !server_ || departed_.size() >= others;
}

void Lead::Tell(int node, const control::Told& told) {
  if (node == own_node_) return listener_.told(told);
  if (const auto peer = peers_.find(node); peer != peers_.end()) server_->Tell(peer->second, told);
}

void Lead::TellStandbys() {
  if (std::exchange(standbys_told_, true)) return;
  const control::State& state = head_.state();
  for (const auto& [peer, agent] : agents_) {
    if (agent.node == control::kStandby)
      server_->Tell(peer, control::Command(control::Finish{state.exit_code, state.verdict}));
  }
}

void Lead::Tick() {
  const Nanos now = clock_.Now();
  const Nanos away = ticked_.value != 0 ? now - ticked_ : Nanos{};
  const bool stalled = away > ToNanos(kStalled);
  LookWhetherStopped();
  ticked_ = now;
  if (begun_ && stalled) head_.WasAway(away);
  BeginIfComplete();
  GiveUpIfTooLate();
  if (begun_) TellWhoStayedAway();
  if (begun_) head_.Tick();
  if (!server_) return;
  if (begun_ && head_.state().mode == control::Mode::kFinished) TellStandbys();
  if (now - beat_ >= ToNanos(kHeartbeat)) {
    beat_ = now;
    server_->Heartbeat(shared_ && shared_->MayBeReplaced());
  }
  for (auto it = agents_.begin(); it != agents_.end();) {
    const Peer peer = it->first;
    Agent& agent = it++->second;
    if (stalled) agent.heard = now;
    if (now - agent.heard < ToNanos(rpc::kSilence)) continue;
    server_->Drop(peer);
    Left(peer, fmt::format("nothing heard for {} s", rpc::kSilence.value), rpc::kSilence);
  }
}

}  // namespace lockstep::node
