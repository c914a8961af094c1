#include "lockstep/control/simulation_promises.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace lockstep::control {
namespace {

constexpr double kSlowStep = 0.2;
constexpr Seconds kLongRepair{20}, kLastWords{0.3};
constexpr Seconds kSlack{1};
constexpr Seconds kLongWait{30};  // ranks may have stepped until then, or the coordinator is away
constexpr Seconds kPrompt{8};     // an agent may be silent for 4 s before that is noticed

bool IsEnding(const State& state) { return state.mode == Mode::kFinishing || state.mode == Mode::kFinished; }

// Nobody is left to be asked kindly.
bool IsBeingKilled(const State& state) { return state.mode == Mode::kStopping || state.mode == Mode::kChoosing; }

}  // namespace

void Promises::Begin(const JobSpec& spec, int max_restarts) {
  spec_ = spec;
  max_restarts_ = max_restarts;
  started_ = schedule_.now();
  if (spec.leading_node >= 0) leader_ = spec.nodes[static_cast<size_t>(spec.leading_node)].token;
}

void Promises::Break(const std::string& promise) {
  if (broken_.empty()) broken_ = fmt::format("at {:.3f} s: {}", ToSeconds(schedule_.now()).value, promise);
}

void Promises::LoseRanks(const State& state) { ranks_lost_ = ranks_lost_ || !IsEnding(state); }

void Promises::HearOfStandby(const EventBody& body) {
  if (const auto* came = std::get_if<StandbyCame>(&body)) unfit_.erase(came->node.token);
  const auto* alert = std::get_if<Alerted>(&body);
  if (alert == nullptr || alert->token.empty()) return;
  alert->cleared ? void(unfit_.erase(alert->token)) : void(unfit_.insert(alert->token));
}

// A machine that says that it is broken comes in place of a lost one at most, and if no other one is there.
void Promises::CheckWhoComes(const State& state, const Command& command) {
  const auto is_fit = [&](const NodeSpec& standby) { return !unfit_.contains(standby.token); };
  const auto* seat = std::get_if<Seat>(&command);
  if (seat && unfit_.contains(seat->standby.token) && std::ranges::any_of(state.standbys, is_fit))
    Break(fmt::format("{} says that it is broken, and is preferred to who does not", seat->standby.name));
  const auto* resize = std::get_if<Resize>(&command);
  for (size_t node = 0; resize && node < resize->from.size(); ++node)
    if (resize->from[node] < 0 && !is_fit(state.spec.nodes[node]))
      Break(fmt::format("the world grows by {}, which says that it is broken", state.spec.nodes[node].name));
}

void Promises::Hear(const State& before, const EventBody& body) {
  HearOfStandby(body);
  const bool stop = std::holds_alternative<StopAsked>(body);
  if (IsEnding(before)) {
    if (stop && impatient_) order_ = Order{before.exit_code, schedule_.now(), {}};
    return;
  }
  if (stop) order_ = Order{kExitFailed, schedule_.now(), IsBeingKilled(before) ? Seconds{} : spec_.grace};
  if (const auto* chosen = std::get_if<RestoreChosen>(&body)) HearUnfit(before, *chosen);
  if (std::holds_alternative<GrowthDue>(body)) BeginGrowth(before);
  const auto* gone = std::get_if<AgentGone>(&body);
  if (gone && IsEnd(before, gone->node, schedule_.now())) order_ = Order{kExitLost, schedule_.now(), {}};
}

// A world may be such that what was saved is of no use to it; it is not to be said of one that could go on.
void Promises::HearUnfit(const State& before, const RestoreChosen& chosen) {
  const bool heard = before.mode == Mode::kChoosing && chosen.epoch.value() == before.epoch.value() + 1;
  if (chosen.unfit.empty() || !heard) return;
  if (cluster_.newest_whole() && !cluster_.IsSpoilt())
    Break(fmt::format("{} is there for all, and it is said: {}", PointName(cluster_.newest_whole()), chosen.unfit));
  if (growth_ && before.evictions.size() == growth_->evictions && cluster_.IsThereAndAlike())
    Break(fmt::format("a restart in order to grow, for nothing: {}", chosen.unfit));
  const auto joins = [&](const NodeSpec& node) { return before.joining.contains(node.token); };
  const auto left = std::count_if(before.spec.nodes.begin(), before.spec.nodes.end(), std::not_fn(joins));
  if (before.joining.empty() || left < spec_.least_nodes) order_ = Order{kExitLost, schedule_.now(), {}};
}

void Promises::BeginGrowth(const State& before) {
  if (!IsGrowthDue(before, schedule_.now())) return;
  ++causes_;
  growth_ = Growth{before.epoch, before.spec.nodes.size(), before.evictions.size(), {}};
  for (const NodeSpec& standby : before.standbys) growth_->waited.insert(standby.token);
}

// It is for something, and costs no more than what was done since the epoch's own newest checkpoint.
void Promises::CheckGrowth(const State& state) {
  const std::optional<Growth> growth = std::exchange(growth_, std::nullopt);
  if (!growth || state.evictions.size() != growth->evictions || cluster_.IsSpoilt() || cluster_.CutsAnew()) return;
  const bool waits = std::any_of(state.standbys.begin(), state.standbys.end(),
                                 [&](const NodeSpec& standby) { return growth->waited.contains(standby.token); });
  if (state.spec.nodes.size() <= growth->nodes && waits) Break("a restart in order to grow, and the world did not");
  if (state.spec.nodes.size() > growth->nodes && (!state.restore || state.restore->epoch != growth->epoch))
    Break(fmt::format("the world grew after epoch {}, and goes on from {}", growth->epoch.value(),
                      PointName(state.restore)));
}

void Promises::CheckWorld(const State& state) {
  const WorldSizes sizes{state.spec.nodes.size(), state.evictions.size(),  state.standbys.size(),
                         state.vacated.size(),    state.spec.leading_node, state.world_since};
  if (std::exchange(world_checked_, sizes) == sizes) return;
  const int nodes = static_cast<int>(state.spec.nodes.size());
  if (nodes < spec_.least_nodes || nodes > spec_.most_nodes)
    Break(fmt::format("a world of {} nodes, of {} to {}", nodes, spec_.least_nodes, spec_.most_nodes));
  std::set<std::string> tokens;
  for (const NodeSpec& node : state.spec.nodes)
    if (!tokens.insert(node.token).second) Break(fmt::format("{} is two nodes", node.name));
  const auto leads = static_cast<size_t>(state.spec.leading_node);
  if (!leader_.empty() && (leads >= state.spec.nodes.size() || state.spec.nodes[leads].token != leader_))
    Break("the node that leads is another one now");
}

void Promises::Ask(const State& state, const Command& command) {
  if (std::holds_alternative<Spawn>(command)) CheckGrowth(state);
  CheckWhoComes(state, command);
  const auto* kill = std::get_if<KillEpoch>(&command);
  if (kill && order_ && state.mode == Mode::kFinishing && kill->grace < order_->grace)
    Break(fmt::format("ranks have {} s to leave, and were promised {} s", kill->grace.value, order_->grace.value));
}

void Promises::Forget(const State& resumed) {
  ++causes_;  // what nobody wrote down is done again, and so is each update that ran already
  causes_ += static_cast<int>(std::ranges::count(resumed.versions, VersionStage::kWaiting, &Update::stage) +
                              std::ranges::count(resumed.versions, VersionStage::kCopying, &Update::stage));
  if (!order_) return;
  if (!IsEnding(resumed)) return order_.reset();
  order_ = Order{resumed.exit_code, schedule_.now(), resumed.kill_grace};
}

void Promises::CheckState(const State& state) {
  if (const absl::Status valid = Validate(state); !valid.ok()) Break(Message(valid));
  const int charged = state.restarts - state.free_retries;
  if (charged > max_restarts_) Break(fmt::format("{} restarts, {} are allowed", charged, max_restarts_));
  if (state.restarts > causes()) Break(fmt::format("{} restarts for {} causes", state.restarts, causes()));
  if (state.restarts > 0 && spec_.observe_only) Break("a restart, and the job was only to be observed");
}

void Promises::Check(const State& state, bool news) {
  if (!cluster_.broken().empty()) Break(cluster_.broken());
  if (news) CheckState(state);
  CheckEvictions(state);
  if (news && spec_.most_nodes > 0) CheckWorld(state);
  if (!IsEnding(state))
    for (const auto& [node, awaited] : state.awaited)
      if (schedule_.now() - awaited.since > ToNanos(Seconds{spec_.policy.wait_for_node.value + kLongWait.value}))
        Break(fmt::format("node {} is awaited for ever", node));
  if (!order_ || state.mode == Mode::kFinished) return;
  const Nanos since = std::max(order_->at, excused_at_);
  if (schedule_.now() - since > ToNanos(Seconds{order_->grace.value + kPrompt.value}))
    Break(fmt::format("the job was to end, and is in mode {} long after", ModeName(state.mode)));
}

// Those of the last hour are all there are. One that is lost is gone whatever the policy says, and only counts.
void Promises::CheckEvictions(const State& state) {
  const Policy& policy = spec_.policy;
  const bool waits = state.mode == Mode::kStopping && !state.fault.plan.evict.empty();
  if (!waits) waits_since_.reset();
  if (waits && !waits_since_) waits_since_ = schedule_.now();
  const Seconds enough{policy.stop_within.value + kSlack.value};
  if (waits && schedule_.now() - std::max(*waits_since_, excused_at_) > ToNanos(enough))
    Break("ranks of a node that is to be evicted are waited for");
  for (; evictions_ < state.evictions.size(); ++evictions_) {
    const Eviction& eviction = state.evictions[evictions_];
    if (spec_.observe_only || policy.dry_run) Break("an eviction, and it was only to be said");
    if (!lost_first_.empty() && eviction.node.token != lost_first_ && evictions_ == 0)
      Break(fmt::format("{} is taken for lost, and the ranks of another one have ended", eviction.node.name));
    if (eviction.role == Role::kLoss) continue;
    if (!accused_.contains(eviction.node.token))
      Break(fmt::format("{} was evicted without a reason", eviction.node.name));
    if (eviction.role == Role::kReplay && !spoiled_.contains(eviction.node.token))
      Break(fmt::format("{} was evicted by a replay, and computes as it should", eviction.node.name));
    const auto before =
        std::count_if(state.evictions.begin(), state.evictions.begin() + static_cast<std::ptrdiff_t>(evictions_),
                      [](const Eviction& earlier) { return earlier.joined; });
    if (before >= policy.evictions_per_hour)
      Break(fmt::format("{} evictions, {} are allowed", before + 1, policy.evictions_per_hour));
    const int machines = static_cast<int>(state.spec.nodes.size() + state.standbys.size());
    if (machines < policy.least_machines) Break(fmt::format("{} machines are left", machines));
  }
}

void Promises::CheckEnd(const State& state) {
  if (!broken_.empty()) return;
  if (state.mode != Mode::kFinished)
    return Break(fmt::format("nothing follows from mode {} in epoch {}", ModeName(state.mode), state.epoch.value()));
  CheckStatus(state);
  CheckLedger(state);
  int64_t lost = 0;
  for (const incident::Incident& incident : state.incidents)
    CheckIncident(state, incident, lost += incident.steps_lost);
}

void Promises::CheckStatus(const State& state) {
  if (order_ && state.exit_code != order_->status)
    Break(fmt::format("it was to end with status {}, and ended with {}", order_->status, state.exit_code));
  if (!order_ && state.exit_code == kExitLost) Break("nothing was lost, and it ended with the status for that");
  if (ranks_lost_ && state.exit_code == kExitDone) Break("ranks were lost for good, and it is said to be complete");
  const bool untouched = !order_ && causes() == 0 && !spec_.load_first;  // what is on disk may be damaged
  if (untouched && state.exit_code != kExitDone) Break("it failed, and nothing had happened to it");
}

void Promises::CheckLedger(const State& state) {
  const Ledger::Sums sums = state.ledger.Total(schedule_.now());
  const Nanos sum = std::accumulate(sums.begin(), sums.end(), Nanos{});
  if (sum != state.now - started_)
    Break(fmt::format("the ledger has {} ns of {} ns", sum.value, (state.now - started_).value));
}

// One that was repaired closes when the steps lost by it, and by those before it, are done again: not only with the
// job.
void Promises::CheckIncident(const State& state, const incident::Incident& incident, int64_t lost) {
  if (incident.closed.value == 0) Break(fmt::format("incident {} is open, and the job is over", incident.id));
  const Seconds enough = kLongRepair + Seconds{kSlowStep * static_cast<double>(lost)};
  const Nanos since = std::max(incident.opened, excused_at_);
  const bool had_time = state.exit_code == kExitDone && state.now - since > ToNanos(enough);
  const bool at_the_end = state.now - incident.closed < ToNanos(kLastWords);
  if (had_time && at_the_end) Break(fmt::format("incident {} ended only with the job", incident.id));
}

}  // namespace lockstep::control
