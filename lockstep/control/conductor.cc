#include "lockstep/control/conductor.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/control/keepers.h"
#include "lockstep/control/ranks_end.h"

namespace lockstep::control {
namespace {

constexpr Seconds kStillAdvances{10};  // a job of short steps
constexpr Seconds kToBecomeWhole{15};  // an agent counts checkpoints without a copy if nobody has kept one for 10 s
constexpr Seconds kToCatchUp{4};       // agents that gave up this process while it was stopped come anew, and say all

// Every node of the job has had its agent here or at whoever led before.
bool HadItsAgents(const State& state) {
  const bool begins = state.mode == Mode::kLoading || state.mode == Mode::kSpawning;
  return !begins || state.restarts > 0;
}

// A standby is there that is fit to take a place, or may be so now.
bool OffersStandby(const EventBody& body) {
  const auto* alert = std::get_if<Alerted>(&body);
  return std::holds_alternative<StandbyCame>(body) || (alert != nullptr && !alert->token.empty() && alert->cleared);
}

}  // namespace

Conductor::Conductor(const State& state, const Clock& clock, Listener listener)
    : state_(state),
      clock_(clock),
      listener_(std::move(listener)),
      replay_({.tell = [this](int node, const Told& told) { Tell(node, told); },
               .answered = [this](const Probed& answer) { Handle(answer); }}) {}

// While loading, the acting epoch is still the coming one.
void Conductor::Begin(const std::vector<Command>& commands, const Conductor* before) {
  fleet_ = std::make_unique<Fleet>(KeepersOf(state_.spec));
  fleet_->Begin(EpochId(state_.epoch.value() - (state_.mode == Mode::kLoading ? 1 : 0)),
                state_.in_loop && !state_.unseen);
  nodes_.resize(static_cast<size_t>(fleet_->nodes()));
  for (int node = 0; node < nodes(); ++node) Put(node, Standing::kLost, clock_.Now());
  if (HadItsAgents(state_)) back_by_ = clock_.Now() + ToNanos(kToComeBack);
  if (before != nullptr) CountOnFrom(*before);
  for (const int vacant : state_.vacated) {  // by whoever led before
    Put(vacant, Standing::kGone, {});
    Hear(vacant, Observed{});
    (void)fleet_->Vacate(vacant);  // nobody has said anything yet
  }
  CarryOut(commands);
}

// Nodes may have other numbers than there, and others may have their places.
void Conductor::CountOnFrom(const Conductor& before) {
  counted_before_ = before.counted_before_;
  for (const Node& last : before.nodes_) {
    int node = 0;
    while (node < nodes() && TokenOf(node) != last.token) ++node;
    if (node == nodes()) {
      KeepCounts(last.observed, Observed{}, counted_before_);
      continue;
    }
    Of(node).token = last.token;
    Of(node).observed = last.observed;
    Of(node).observed.ranks.clear();  // under the old numbers
    Of(node).observed_at = last.observed_at;
  }
}

std::string Conductor::TokenOf(int node) const {
  const auto index = static_cast<size_t>(node);
  return index < state_.spec.nodes.size() ? state_.spec.nodes[index].token : "";
}

std::string Conductor::NameOf(int node) const {
  const auto index = static_cast<size_t>(node);
  const std::vector<NodeSpec>& nodes = state_.spec.nodes;
  return index < nodes.size() ? nodes[index].name : std::to_string(node);
}

void Conductor::Put(int node, Standing standing, Nanos since) {
  lost_ += (standing == Standing::kLost ? 1 : 0) - (Of(node).standing == Standing::kLost ? 1 : 0);
  Of(node).standing = standing;
  Of(node).since = since;
  Of(node).left_us = false;
}

// ---- hearing ----

void Conductor::Hear(int node, const Said& said) {
  std::visit([&](const auto& body) { Hear(node, body); }, said);
}

// A scheduler that ends a job signals every node: only a node that asks for the second time means "at once". Of a job
// that ends for another reason, nothing is left to be asked kindly.
void Conductor::Hear(int node, const EventBody& said) {
  if (std::holds_alternative<StopAsked>(said)) {
    const bool first = !std::exchange(Of(node).asked_stop, true);
    if (first && state_.mode == Mode::kFinishing && state_.stop_asked) return;
  }
  const auto* probed = std::get_if<Probed>(&said);
  const bool of_replay = probed != nullptr && probed->rung == Rung::kReplay;
  if (of_replay && replay_.Refused(node, clock_.Now())) return;
  Handle(fleet_->Hear(node, said));
}

void Conductor::Hear(int node, const RestoreFound& found) {
  Handle(fleet_->Hear(node, found));
  for (const auto& [asked, question] : fleet_->TakeQuestions()) Tell(asked, question);
}

void Conductor::Hear(int node, const KeepsAt& where) {
  fleet_->Hear(node, where);
  for (const int ward : fleet_->WardsOf(node)) TellKeeper(ward);
}

void Conductor::TellKeeper(int node) {
  const auto keeper = fleet_->KeeperOf(node);
  if (keeper) Tell(node, KeepWith{NameOf(keeper->first), keeper->second.host, keeper->second.port});
}

// To look at all nodes at the word of each would be a square of work: when something became whole, at the word of as
// many as there are, and at a tick.
void Conductor::Hear(int node, const Holding& holding) {
  const bool whole = fleet_->Hear(node, holding);
  if (++holdings_ >= nodes_.size() || whole) TellCommit();
}

void Conductor::TellCommit() {
  if (std::exchange(holdings_, 0) == 0) return;
  if (const std::optional<Commit> news = fleet_->CommitNews()) TellAll(*news);
}

void Conductor::Hear(int node, const Samples& samples) {
  fleet_->Hear(node, samples);
  if (samples.progress.step_end <= newest_step_end_) return;
  newest_step_end_ = samples.progress.step_end;
  advanced_at_ = clock_.Now();
}

void Conductor::Hear(int node, const Observed& observed) {
  KeepCounts(Of(node).observed, observed, counted_before_);
  Of(node).token = TokenOf(node);
  Of(node).observed = observed;
  Of(node).observed_at = clock_.Now();
}

void Conductor::Hear(int, const StoreAt& store) {
  if (!spawn_ || store.epoch != spawn_->epoch || store_) return;
  store_ = store;
  TellSpawn(*spawn_, std::nullopt);
}

void Conductor::Hear(int node, const AllSaid& said) {
  Put(node, Standing::kAttends, {});
  if (state_.lost_agents.contains(node)) Handle(AgentBack{node});
  if (said.epoch > state_.epoch) Handle(JournalBehind{said.epoch});
  for (const Command& command : PendingCommands(state_)) TellPending(node, command);
  // What was told while it was away, or what it said of it, may be lost.
  GiveUpPart(node);
  const bool all_back = nodes() > 1 && lost_ == 0 && fleet_->MeetAnew();
  all_back ? TellAll(fleet_->commit()) : Tell(node, fleet_->commit());
  if (const std::optional<Version> version = VersionToCopy(state_)) Tell(node, Command(KeepCode{*version}));
  TellKeeper(node);
  FlushIfAllIsThere();
}

// If its processes are to end, it has its order from now on.
void Conductor::TellPending(int node, const Command& command) {
  if (const auto* spawn = std::get_if<Spawn>(&command)) return TellSpawn(*spawn, node);
  const auto* wait = std::get_if<WaitForStop>(&command);
  if (wait == nullptr) return Tell(node, Asked(node, command));
  if (state_.mode == Mode::kFinishing && !fleet_->HasStopped(node)) Carry(*wait);
}

void Conductor::Lost(int node, const std::string& why, Seconds silence) {
  if (!Attends(node) && !Of(node).left_us) return;
  Put(node, Standing::kLost, clock_.Now());
  fleet_->Away(node);
  if (state_.mode == Mode::kFinished) GiveUpPart(node);
  Handle(AgentLost{node, NameOf(node), why, clock_.Now() - ToNanos(silence), silence > Seconds{}});
}

void Conductor::LeftUs(int node) {
  if (!Attends(node)) return;
  Put(node, Standing::kLost, clock_.Now());
  Of(node).left_us = true;
}

// ---- what goes to disk ----

// What no node may give up before it has heard of a newer one, which we tell later.
void Conductor::Hear(int, const FlushWanted& wanted) {
  flush_wanted_ = wanted.point;
  FlushIfAllIsThere();
}

// Who writes this node's part: once the job is over, of a node that is out of reach, or has none, its keeper. None: the
// part is nowhere, or its node may be back to write it.
std::optional<int> Conductor::WriterOf(int node, const CheckpointId& point) const {
  if (HasPart(node, point)) return node;
  const auto keeper = state_.mode == Mode::kFinished ? fleet_->KeeperOf(node) : std::nullopt;
  if (!keeper || !keeper->second.writes_parts || !HasPart(keeper->first, point)) return std::nullopt;
  return keeper->first;
}

// By node, whose parts it writes beside its own. None: some part has no writer.
std::optional<std::vector<std::vector<Ward>>> Conductor::ShareParts(const CheckpointId& point) const {
  std::vector<std::vector<Ward>> wards(nodes_.size());
  int first_rank = 0;
  for (int node = 0; node < nodes(); ++node) {
    const std::optional<int> writer = WriterOf(node, point);
    if (!writer) return std::nullopt;
    if (*writer != node) wards[static_cast<size_t>(*writer)].push_back({node, first_rank, NameOf(node)});
    const auto index = static_cast<size_t>(node);
    if (index < state_.spec.nodes.size()) first_rank += state_.spec.nodes[index].ranks;
  }
  return wards;
}

void Conductor::FlushIfAllIsThere() {
  if (!flush_wanted_) return;
  const CheckpointId point = std::max(*flush_wanted_, fleet_->commit().point);
  const auto wards = ShareParts(point);
  if (!wards) return;
  flush_wanted_.reset();
  flushing_ = point;
  for (int node = 0; node < nodes(); ++node)
    if (HasPart(node, point)) Tell(node, WritePart{point, (*wards)[static_cast<size_t>(node)]});
}

// Once the job is over no rank is faster than what is newest: it has not come to that node, which took another's place.
void Conductor::Hear(int node, const PartWritten& part) {
  PartWritten told = part;
  const bool lacks = part.gone && part.node == node && !(part.point < fleet_->commit().point);
  if (lacks && state_.mode == Mode::kFinished) {
    Of(node).lacks = part.point;
    told.gone = WriterOf(node, part.point).has_value();  // then it is worth another attempt
    if (!told.gone)
      told.error = fmt::format("node {} has no part of step {}, and no node in reach keeps it for it", NameOf(node),
                               part.point.step);
  }
  Tell(0, told);
}

// What this node would have written of the checkpoint that goes to disk, of its own or for others, is not waited for.
void Conductor::GiveUpPart(int node) {
  if (!flushing_ || node == 0) return;
  Tell(0, PartWritten{*flushing_, node, "", true, ""});
  for (const int ward : fleet_->WardsOf(node))
    if (!HasPart(ward, *flushing_)) Tell(0, PartWritten{*flushing_, ward, "", true, ""});
}

void Conductor::Hear(int, const DiskDone& done) {
  disk_done_ = true;
  TellAll(done);
}

// ---- carrying out ----

void Conductor::Handle(const EventBody& body) {
  CarryOut(listener_.decide(body));
  if (OffersStandby(body) && !stuck_) LoseTheStuck();
  replay_.EndUnless(state_);
}

void Conductor::Handle(const std::vector<EventBody>& events) {
  for (const EventBody& event : events) Handle(event);
}

void Conductor::CarryOut(const std::vector<Command>& commands) {
  const bool within = std::exchange(carrying_, true);
  for (const Command& command : commands) {
    std::visit([&](const auto& body) { Carry(body); }, command);
    listener_.carried(command);
  }
  if (within) return;
  carrying_ = false;
  Handle(std::exchange(later_, {}));
}

// Commands that are still to be carried out may mean nodes by numbers that change because of this.
void Conductor::HearLater(const std::vector<EventBody>& events) {
  later_.insert(later_.end(), events.begin(), events.end());
}

// The store comes first: on node 0, without which no epoch begins, and where rank 0 is if it must host the store
// itself.
void Conductor::TellSpawn(const Spawn& spawn, std::optional<int> only) {
  fleet_->Begin(spawn.epoch);
  if (!spawn_ || spawn_->epoch != spawn.epoch) store_.reset();
  spawn_ = spawn;
  if (!store_) return Tell(0, HostStore{spawn.epoch, spawn.restart_count});
  Spawn complete = spawn;
  complete.store_host = store_->host;
  complete.store_port = store_->port;
  complete.store_hosted = store_->hosted;
  only ? Tell(*only, Command(complete)) : TellAll(Command(complete));
}

Conductor::Wait Conductor::WaitFor(EpochId epoch, Seconds at_most) const {
  return {epoch, std::max(clock_.Now() + ToNanos(at_most), caught_up_)};
}

void Conductor::Carry(const KillEpoch& kill) {
  culprit_.reset();
  stuck_ = WaitFor(kill.epoch, state_.spec.policy.stuck_within);
  fleet_->Begin(kill.epoch);  // one that the journal did not know of
  TellAll(Command(kill));
}

// At the end of a job nobody takes the place of a node that is gone.
void Conductor::Carry(const WaitForStop& wait) {
  stop_ = WaitFor(wait.epoch, wait.at_most);
  if (state_.mode != Mode::kFinishing) return;
  for (int node = 0; node < nodes(); ++node)
    if (IsGone(node) && !fleet_->HasStopped(node)) HearLater(fleet_->Gone(node));
}

void Conductor::Carry(const ChooseRestore& choose) {
  fleet_->Poison(choose.poisoned);
  TellAll(Command(choose));
}

void Conductor::Carry(const Probe& probe) {
  probe_.reset();
  if (probe.rung == Rung::kReplay) {
    replay_.Begin(state_, probe, clock_.Now());
  } else {
    probe_ = WaitFor(probe.epoch, probe.at_most);
  }
  // An agent of this process begins at once, and listens elsewhere from then on: all rings are made before. Whoever is
  // asked later tests only itself, for the others have begun without it.
  std::vector<Probe> asked(nodes_.size(), probe);
  if (probe.rung == Rung::kDiagnose)
    for (int node = 0; node < nodes(); ++node) asked[static_cast<size_t>(node)].ring = fleet_->RingOf(node);
  for (int node = 0; node < nodes(); ++node) Tell(node, Asked(node, asked[static_cast<size_t>(node)]));
}

// Whoever had the place is not heard any more, and what ran there counts as gone.
void Conductor::Carry(const Seat& seat) {
  GoOnWithout(seat.node, Standing::kLost);
  HearLater(fleet_->Gone(seat.node));
}

void Conductor::Carry(const Vacate& vacate) {
  GoOnWithout(vacate.node, Standing::kGone);
  HearLater(fleet_->Vacate(vacate.node));
}

void Conductor::GoOnWithout(int node, Standing standing) {
  Put(node, standing, clock_.Now());
  Of(node).asked_stop = false;
  Hear(node, Observed{});
  if (node == 0) flush_wanted_.reset();
  GiveUpPart(node);
  replay_.Lost(node);
}

// Nothing of the old numbering is left: whoever had a place says all that it knows, as whoever joins.
void Conductor::Carry(const Resize& resize) {
  for (int node = 0; node < nodes(); ++node)
    if (std::ranges::find(resize.from, node) == resize.from.end()) Hear(node, Observed{});
  std::vector<Node> nodes;
  for (const int before : resize.from) {
    nodes.push_back(before >= 0 ? Of(before) : Node{Standing::kLost, clock_.Now()});
    nodes.back().observed.ranks.clear();  // under the old numbers
  }
  nodes_ = std::move(nodes);
  lost_ = static_cast<int>(std::ranges::count(nodes_, Standing::kLost, &Node::standing));
  flush_wanted_.reset();
  flushing_.reset();
  holdings_ = 0;
  fleet_ = std::make_unique<Fleet>(KeepersOf(state_.spec));
  fleet_->Begin(state_.epoch);
}

void Conductor::Carry(const Finish& finish) {
  TellCommit();                               // the last word on what is whole
  for (int node = 0; node < nodes(); ++node)  // nobody waits for it any longer
    if (!Attends(node)) GiveUpPart(node);
  FlushIfAllIsThere();  // what was asked for while a node was away
  TellAll(Command(finish));
}

void Conductor::TellAll(const Told& told) {
  for (int node = 0; node < nodes(); ++node) Tell(node, told);
}

void Conductor::Tell(int node, const Told& told) {
  if (Attends(node)) listener_.tell(node, told);
}

// ---- time ----

void Conductor::Tick() {
  const Nanos now = clock_.Now();
  Handle(EventBody(control::Tick{}));
  SayWhoStayedAway(now);
  EndWaits(now);
  replay_.Tick(now);
  TellCommit();
  if (const auto pending = fleet_->Pending(); std::exchange(pending_, pending) != pending) pending_since_ = now;
  UpdateIfDue(now);
  GrowIfDue(now);
  LookForTheGone(now);
}

// An agent whose coordinator was killed and that is not back when all have had their time is as good as lost, and what
// follows from that of others is not decided before.
void Conductor::SayWhoStayedAway(Nanos now) {
  if (back_by_.value == 0 || (lost_ > 0 && now < back_by_)) return;
  back_by_ = {};
  for (int node = 0; node < nodes(); ++node) {
    const bool is_ours = node == state_.spec.leading_node;  // of this process
    const bool stayed_away = Of(node).standing == Standing::kLost && !Of(node).left_us;
    if (stayed_away && !is_ours && now - Of(node).since >= ToNanos(kToComeBack)) SayLost(node);
  }
}

void Conductor::SayLost(int node) {
  if (!state_.lost_agents.contains(node))
    Handle(AgentLost{node, NameOf(node), "it has not come to this coordinator", Of(node).since});
}

// What was waited for has not come in its time.
void Conductor::EndWaits(Nanos now) {
  const auto take = [&](std::optional<Wait>& wait) {
    return wait && now >= wait->until ? std::exchange(wait, std::nullopt) : std::nullopt;
  };
  const bool some_may_come = back_by_.value != 0;
  if (const auto culprit = some_may_come ? std::nullopt : take(culprit_)) Handle(SecondaryGraceOver{culprit->epoch});
  if (const auto stop = take(stop_)) StopIsOverdue(stop->epoch);
  if (take(stuck_)) LoseTheStuck();
  if (const auto probe = take(probe_)) EndProbe(probe->epoch);
}

void Conductor::EndProbe(EpochId epoch) {
  if (state_.mode != Mode::kProbing || state_.epoch != epoch) return;
  std::vector<int> unanswered;
  Probed probed = fleet_->Overdue(state_.fault.plan.rung, unanswered);
  for (const int node : unanswered) probed.unanswered.push_back(NameOf(node));
  Handle(probed);
}

// A restart has waited long enough for ranks that don't end; those of the epoch of the newest KillEpoch.
void Conductor::LoseTheStuck() {
  if (state_.mode != Mode::kStopping) return;
  if (const std::vector<int> stuck = fleet_->Unstopped(); !stuck.empty()) Handle(StopOverdue{state_.epoch, stuck});
}

// The end of a job waits for whoever is away until he is back, and then for his processes, or until he counts as gone.
void Conductor::StopIsOverdue(EpochId epoch) {
  if (lost_ > 0 && state_.mode == Mode::kFinishing) return Carry(WaitForStop{epoch, state_.spec.policy.stuck_within});
  Handle(StopOverdue{epoch, {}, fleet_->Unstopped()});
}

void Conductor::WasAway(Nanos away) {
  const Nanos now = clock_.Now();
  for (int node = 0; node < nodes(); ++node)
    if (Of(node).standing == Standing::kLost) Of(node).since = now;
  caught_up_ = now + ToNanos(kToCatchUp);
  if (back_by_.value != 0) back_by_ = now + ToNanos(kToComeBack);
  for (std::optional<Wait>* wait : {&culprit_, &stop_, &stuck_, &probe_})
    if (*wait) (*wait)->until = std::max((*wait)->until + away, caught_up_);
  replay_.WasAway(away);
  if (!state_.awaited.empty()) Handle(WaitInterrupted{now - away});
}

std::vector<std::string> Conductor::LostBeside(int node) const {
  std::vector<std::string> names;
  for (int other = 0; other < nodes(); ++other)
    if (Of(other).standing == Standing::kLost && other != node) names.push_back(NameOf(other));
  return names;
}

Nanos Conductor::LostSince() const {
  Nanos first;
  for (const Node& node : nodes_)
    if (node.standing == Standing::kLost) first = first.value == 0 ? node.since : std::min(first, node.since);
  return first;
}

bool Conductor::IsUncommitted() const {
  const bool trains = nodes() > 1 && state_.mode == Mode::kRunning && !state_.unseen;
  const Commit& newest = fleet_->commit();
  const bool meets_anew = newest.meet_from > 0 && newest.point.step < newest.meet_from;
  return trains && (lost_ > 0 || meets_anew);
}

std::vector<std::string> Conductor::WaitsFor() const {
  std::vector<std::string> names = LostBeside(-1);
  const bool for_long = pending_ && advanced_at_ - pending_since_ >= ToNanos(kToBecomeWhole);
  if (lost_ > 0 || state_.mode != Mode::kRunning || !for_long) return names;
  for (const int node : fleet_->Without(*pending_)) names.push_back(NameOf(node));
  return names;
}

Nanos Conductor::GoneBy() const {
  Nanos last;
  for (int node = 0; node < nodes(); ++node)
    if (Of(node).standing == Standing::kLost) last = std::max(last, GoneAt(state_, node, Of(node).since));
  return last;
}

// Of several nodes that are lost while the job stands: the ranks of one whose agent was away before went on with the
// others meanwhile, so it is one whose ranks ended when they stood already, or shortly before; else the last. It may be
// awaited. None: what it stands for is known.
std::optional<int> Conductor::WhoHoldsTheJobUp() const {
  if (state_.mode != Mode::kRunning) return std::nullopt;
  const auto order = [&](int node) {
    const Unheard lost = UnheardSince(node);
    return std::pair(WentOn(lost, advanced_at_), Apart(RanksEnd(lost, advanced_at_), advanced_at_));
  };
  std::optional<int> found;
  for (int node = 0; node < nodes(); ++node) {
    if (Of(node).standing != Standing::kLost) continue;
    if (!found || order(node) < order(*found)) found = node;
  }
  return found;
}

// While the others step, or have not had the time for a step, the ranks of a node that is away may step with them: only
// its agent is, until its starter ends them.
Seconds Conductor::StillAdvances() const {
  Seconds longest;
  for (const Node& node : nodes_)
    for (const RankStatus& rank : node.observed.ranks) longest = std::max(longest, rank.step_time);
  return std::clamp(longest * 2, kStillAdvances, kWithoutAgent);
}

// Nor is it looked who stands while who was lost first is weighed against what is heard since. Of a job that is only
// observed, the user's stop alone waits for those that are gone. Beside one for which the job stands and another
// machine is awaited, those may go, and be awaited, that were lost then, too. Of a job that ends, steps that are done
// in the grace are no reason to wait.
void Conductor::LookForTheGone(Nanos now) {
  const bool ends = state_.mode == Mode::kFinishing;
  if (lost_ == 0 || AwaitsCulprit(state_)) return;
  const bool goes_on = now - advanced_at_ < ToNanos(StillAdvances()) || state_.spec.observe_only;
  if (goes_on && !ends) return;
  const auto is_due = [&](int node) {
    return Of(node).standing == Standing::kLost && now >= GoneAt(state_, node, Of(node).since);
  };
  const std::optional<int> first = WhoHoldsTheJobUp();
  if (first && is_due(*first)) return TakeForGone(*first, now);
  if (first && !state_.awaited.contains(*first)) return;
  for (int node = 0; node < nodes(); ++node)
    if (is_due(node) && !(first && WentOn(UnheardSince(node), advanced_at_))) TakeForGone(node, now);
}

void Conductor::TakeForGone(int node, Nanos now) {
  const Nanos since = Of(node).since;
  const std::vector<NodeSpec> before = state_.spec.nodes;
  const bool holds_up = WhoHoldsTheJobUp() == node;
  Put(node, Standing::kGone, since);
  if (state_.spec.can_ask) SayLost(node);
  std::string why = fmt::format("its agent has not been heard of for {:.0f} s", ToSeconds(now - since).value);
  std::vector<std::string> others = LostBeside(node);
  if (!others.empty() && IsEnd(state_, node, now)) {
    why += fmt::format("; nor of node {}", fmt::join(others, ", "));
  } else if (holds_up) {
    others.insert(others.begin(), NameOf(node));
    why += WhyChosen(others, UnheardSince(node), advanced_at_, "the job stood");
  }
  Handle(AgentGone{node, why, true});
  if (state_.spec.nodes != before) return;  // this number may be another one's now
  if (state_.awaited.contains(node)) Put(node, Standing::kLost, since);
  if (state_.mode == Mode::kFinishing) Handle(fleet_->Gone(node));
}

void Conductor::UpdateIfDue(Nanos now) {
  const Nanos waited = IsUncommitted() ? now - ToNanos(kUntilWhole) : now;
  if (const std::optional<int> due = UpdateThatIsDue(state_, waited)) Handle(UpdateDue{*due});
}

// Not before a checkpoint of this epoch is whole everywhere: less than the steps since then would be lost in vain.
void Conductor::GrowIfDue(Nanos now) {
  const std::optional<CheckpointId>& committed = Of(0).observed.committed;
  const bool is_kept = committed && committed->epoch == state_.epoch;
  if (is_kept && IsGrowthDue(state_, now)) Handle(GrowthDue{state_.epoch});
}

}  // namespace lockstep::control
