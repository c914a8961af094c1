#include "lockstep/control/machine.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "lockstep/base/check.h"
#include "lockstep/control/report.h"
#include "lockstep/control/turn.h"

namespace lockstep::control {
namespace {

EpochId Next(EpochId epoch) { return EpochId(epoch.value() + 1); }

bool Is(const State& state, std::initializer_list<Mode> modes) {
  return std::find(modes.begin(), modes.end(), state.mode) != modes.end();
}
int64_t StepOf(const std::optional<CheckpointId>& point) { return point ? point->step : -1; }

// Where the time goes while the job is left alone.
Phase PhaseNow(const State& state) {
  if (state.mode != Mode::kRunning) return state.restarts == 0 ? Phase::kStartup : Phase::kRestart;
  const bool witnessed = state.open && state.fault.epoch == state.epoch && state.fault.noticed.value != 0;
  if (witnessed) return Phase::kDecide;
  return state.recomputing ? Phase::kRecompute : Phase::kProductive;
}

int64_t IncidentOf(const State& state, Phase phase) {
  const bool lost = phase == Phase::kDecide || phase == Phase::kRestart || phase == Phase::kRecompute;
  return lost && state.open ? state.incidents[*state.open].id : 0;
}

void EnterPhaseNow(State& state, Nanos at) {
  const Phase phase = PhaseNow(state);
  state.ledger.Enter(phase, at, IncidentOf(state, phase));
  state.settled = at;
}

void SetStepsLost(State& state) {
  if (state.open) Open(state).steps_lost = std::max<int64_t>(0, state.fault.step - StepOf(state.restore));
}

void On(Turn& turn, const JobStarted& event) {
  State& state = turn.state;
  state.spec = event.spec;
  state.epoch = state.spec.first_epoch;
  state.mode = state.spec.load_first ? Mode::kLoading : Mode::kSpawning;
  state.settled = turn.at;
  state.ledger.Enter(Phase::kStartup, turn.at, 0);
  Ask(turn);
}

void On(Turn& turn, const EpochSpawned&) {
  if (turn.state.mode != Mode::kSpawning) return Ignore(turn);
  turn.state.mode = Mode::kStarting;
  turn.state.spawned = turn.at;
}

// Nothing that would keep the job from going on.
bool IsForTheRecord(const State& state) {
  const std::vector<incident::Finding>& findings = state.incidents[*state.open].findings;
  return state.fault.noticed.value == 0 && std::ranges::all_of(findings, [](const incident::Finding& finding) {
           return finding.syndrome == incident::Syndrome::kMachineFault ||
                  finding.syndrome == incident::Syndrome::kNetworkFault || incident::IsSlowness(finding.syndrome);
         });
}

// It tells steps after all: until now it was on its way there.
void TakeBackUnseen(State& state) {
  if (state.paused || PhaseNow(state) != Phase::kProductive) return;
  state.ledger.Enter(state.restarts == 0 ? Phase::kStartup : Phase::kRestart, state.settled, 0);
}

void On(Turn& turn, const LoopBegan& event) {
  State& state = turn.state;
  const bool after_all = state.unseen && state.mode == Mode::kRunning && !event.unseen;
  // The loop may have begun before the news that all workers run has come.
  const bool begins = state.mode == Mode::kStarting || (state.mode == Mode::kSpawning && !event.unseen);
  if (!begins && !after_all) return Ignore(turn);
  if (after_all) TakeBackUnseen(state);
  state.mode = Mode::kRunning;
  state.in_loop = true;
  state.unseen = event.unseen;
  state.loop_began = turn.at;
  if (!event.unseen) state.free_retries_in_row = 0;
  state.restore = event.restored;
  state.progress = {StepOf(event.restored), {}};
  state.frontier = std::max(state.frontier, state.progress.step);
  state.recomputing = state.progress.step < state.frontier;
  state.fault.close_at_step = std::max(state.frontier, state.progress.step + 1);
  if (state.restarts > 0) SetStepsLost(state);
  CloseUnseen(turn);
  if (!state.paused) EnterPhaseNow(state, Settle(state, event.begin));
  for (Climbed& climbed : state.ladder)
    if (climbed.resumed.value == 0) climbed.resumed = turn.at;
  BeginTrial(state);
  Reconsider(turn);
}

void NoteUnseenGoesOn(Turn& turn) {
  Act(turn, incident::ActionKind::kNote, "the job goes on, as far as can be told of one that tells no steps");
  CloseIncident(turn);
}

void GoOnUnseen(Turn& turn) {
  State& state = turn.state;
  if (!state.open || state.mode != Mode::kRunning || state.paused) return Ignore(turn);
  NoteUnseenGoesOn(turn);
  EnterPhaseNow(state, turn.at);
}

void On(Turn& turn, const CaughtUp& event) {
  if (!turn.state.in_loop) return Ignore(turn);
  if (turn.state.unseen) return GoOnUnseen(turn);
  Advance(turn, event.progress);
  if (!event.finite || !turn.state.bad_loss) return;
  CloseIncident(turn, *std::exchange(turn.state.bad_loss, std::nullopt), "the loss is a finite number again");
}

void On(Turn& turn, const ProgressSeen& event) {
  if (!turn.state.in_loop) return Ignore(turn);
  Advance(turn, event.progress);
  JudgeTrial(turn, event.step_time);
}

void On(Turn& turn, const EpochStopped& event) {
  State& state = turn.state;
  if (state.mode == Mode::kFinishing) return FinishNow(turn);
  if (state.mode != Mode::kStopping) return Ignore(turn);
  if (event.bad_from && state.spec.policy.nan_restart) Poison(state, *event.bad_from);
  CarryOut(turn);
}

void JoinRejected(State& state, const std::vector<std::string>& rejected) {
  if (rejected.empty()) return;
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kCorruptCheckpoint;
  finding.evidence = rejected;
  finding.certain = true;
  finding.since = state.now;
  Open(state).findings.push_back(std::move(finding));
}

void BeginEpoch(State& state, const std::optional<CheckpointId>& point) {
  state.fault.step = state.progress.step;
  state.epoch = Next(state.epoch);
  ++state.restarts;
  state.exits.clear();
  ForgetLoop(state);
  state.restore = point;
  state.progress = {StepOf(point), {}};
  // A committed checkpoint proves that all ranks had finished its step.
  state.frontier = std::max(state.frontier, state.progress.step);
  state.frontier_at_restart = state.frontier;
  state.joining.clear();
  state.mode = Mode::kSpawning;
}

// Damaged checkpoints and not one good: to begin afresh, over what a person may still rescue, is not ours to decide.
bool NothingLoads(const State& state, const RestoreChosen& event) {
  return state.spec.load_first && state.frontier < 0 && !event.point && !event.rejected.empty() && event.unfit.empty();
}

void EndUnloaded(Turn& turn, const RestoreChosen& event) {
  BeginFinish(turn, kExitFailed, "no checkpoint on disk can be loaded: " + event.rejected.front(), {});
}

void BeginLoaded(Turn& turn, const RestoreChosen& event) {
  State& state = turn.state;
  state.restore = event.point;
  state.progress = {StepOf(event.point), {}};
  state.frontier = state.progress.step;
  state.mode = Mode::kSpawning;
  Ask(turn);
}

const char* FreeText(const Fault& fault) {
  if (!fault.plan.free) return "";
  return fault.plan.symptom == Symptom::kOurs ? ": not charged, for its port was taken" : ": not charged to the budget";
}

std::string WhyNoPoint(const State& state, const RestoreChosen& event) {
  if (!event.rejected.empty()) return "no checkpoint is intact on all ranks";
  if (state.fault.bad_from < 0) return "there is no checkpoint";
  return fmt::format("there is no checkpoint from before step {}, up to which the loss was finite",
                     state.fault.bad_from);
}

std::string FromText(const State& state, const RestoreChosen& event) {
  if (!event.point) return "the beginning: " + WhyNoPoint(state, event);
  if (state.fault.bad_from < 0) return fmt::format("step {}", event.point->step);
  return fmt::format("step {}, for the loss was finite up to step {} only", event.point->step, state.fault.bad_from);
}

void On(Turn& turn, const RestoreChosen& event) {
  State& state = turn.state;
  if (state.mode != Mode::kLoading && state.mode != Mode::kChoosing) return Ignore(turn);
  if (NothingLoads(state, event)) return EndUnloaded(turn, event);
  if (state.mode == Mode::kLoading && !event.unfit.empty()) return BeginFinish(turn, kExitFailed, event.unfit, {});
  if (state.mode == Mode::kLoading) return BeginLoaded(turn, event);
  if (!event.unfit.empty() && !state.joining.empty()) return UndoGrowth(turn, event.unfit);
  if (!event.unfit.empty()) return BeginFinish(turn, kExitLost, event.unfit, {});
  JoinRejected(state, event.rejected);
  TakeVersion(turn);
  BeginEpoch(state, event.point);
  SetStepsLost(state);
  ActOnPlan(turn, incident::ActionKind::kRestart,
            fmt::format("restart of all {} ranks in epoch {} from {}{}", state.spec.ranks, state.epoch.value(),
                        FromText(state, event), FreeText(state.fault)));
  Ask(turn);
  AnnounceOpen(turn);
}

void On(Turn& turn, const StopAsked& event) {
  State& state = turn.state;
  const char* name = sigabbrev_np(event.signal);
  state.stop_asked = true;
  std::string verdict = name ? fmt::format("stopped by SIG{}", name) : "stopped by the user";
  if (state.mode == Mode::kFinishing) {
    state.kill_grace = {};
    return Ask(turn);
  }
  if (event.signal > 0) state.kill_signal = event.signal;
  // An epoch that is being killed already, or is gone, has nobody left to be asked kindly.
  const bool too_late = Is(state, {Mode::kStopping, Mode::kProbing, Mode::kChoosing});
  BeginFinish(turn, kExitFailed, std::move(verdict), too_late ? Seconds{} : state.spec.grace);
}

void On(Turn& turn, const JobPaused&) {
  State& state = turn.state;
  if (state.paused || !Is(state, {Mode::kSpawning, Mode::kStarting, Mode::kRunning})) return Ignore(turn);
  state.paused = true;
  state.settled = turn.at;
  state.ledger.Enter(Phase::kPaused, turn.at, 0);
}

void On(Turn& turn, const JobContinued&) {
  if (!turn.state.paused) return Ignore(turn);
  turn.state.paused = false;
  EnterPhaseNow(turn.state, turn.at);
  Reconsider(turn);
}

// Nothing was lost, but a person who reads the history must know that nobody watched. The incident that may be open
// stays open. Returns the index of the new one.
size_t AddWatcherIncident(Turn& turn, incident::Suspect watcher, std::string evidence, Nanos since) {
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kWatcherLost;
  finding.suspects = {std::move(watcher)};
  finding.evidence = {std::move(evidence)};
  finding.certain = true;
  finding.since = std::min(since, turn.at);
  const size_t index = AddIncident(turn, finding.since);
  turn.state.incidents[index].findings = {std::move(finding)};
  return index;
}

void On(Turn& turn, const WaitInterrupted& event) {
  for (auto& [node, awaited] : turn.state.awaited)
    awaited.since = awaited.since + (turn.at - std::clamp(event.since, awaited.since, turn.at));
}

void On(Turn& turn, const WatcherGone& event) {
  const double away = ToSeconds(turn.at - std::min(event.since, turn.at)).value;
  const bool known = event.same || event.noted;
  const size_t index =
      AddWatcherIncident(turn, {incident::Suspect::Kind::kSoftware, kCoordinatorName},
                         fmt::format("nobody watched for {}{:.3f} s", known ? "" : "up to ", away), event.since);
  if (event.same) return CloseIncident(turn, index, "it goes on; agents that had given it up came anew");
  CloseIncident(turn, index, "another coordinator took over");
  turn.state.standbys.clear();  // those that are still there come anew, and say what is wrong with them
  turn.state.alerts_of_standbys.clear();
  NoteRoom(turn);
}

void On(Turn& turn, const AgentLost& event) {
  if (turn.state.lost_agents.contains(event.node) || turn.state.vacated.contains(event.node)) return Ignore(turn);
  const size_t index =
      AddWatcherIncident(turn, {incident::Suspect::Kind::kSoftware, AgentName(event.name)}, event.why, event.since);
  turn.state.lost_agents[event.node] = {index, event.silent};
  AnnounceIncident(turn, index);
}

void On(Turn& turn, const Drilled& event) {
  std::vector<Drill>& drills = turn.state.drills;
  if (!event.withdrawn) return drills.push_back({event, turn.at});
  const auto announced = std::find_if(drills.rbegin(), drills.rend(), [&](const Drill& drill) {
    return drill.what.epoch == event.epoch && drill.what.fault == event.fault && drill.what.rank == event.rank;
  });
  if (announced == drills.rend()) return Ignore(turn);
  drills.erase(std::prev(announced.base()));
}

void On(Turn& turn, const ClusterDid& event) {
  State& state = turn.state;
  const int64_t index = event.incident - 1;
  if (index < 0 || index >= static_cast<int64_t>(state.incidents.size())) return Ignore(turn);
  for (Eviction& eviction : state.evictions)
    if (eviction.node.name == event.drained) eviction.drain_told = true;
  state.incidents[static_cast<size_t>(index)].actions.push_back(
      {incident::ActionKind::kNote, event.text, true, turn.at});
  AnnounceIncident(turn, static_cast<size_t>(index));
}

void On(Turn&, const Tick&) {}

// Whether an event is about what goes on now: after the job began, before it finished, and of the acting epoch.
// RestoreChosen speaks of the coming one; while loading, that is the acting one.
template <typename Body>
bool IsHeard(const State& state, const Body& body) {
  if (state.mode == Mode::kFinished) return false;
  if constexpr (std::is_same_v<Body, JobStarted>) return state.epoch.value() == 0;
  if (state.epoch.value() == 0) return false;
  if constexpr (std::is_same_v<Body, RestoreChosen>) {
    return body.epoch == (state.mode == Mode::kLoading ? state.epoch : Next(state.epoch));
  }
  if constexpr (std::is_same_v<Body, Drilled>) {
    if (body.withdrawn) return true;  // its epoch may be over by then
  }
  if constexpr (requires { body.epoch; }) return body.epoch == state.epoch;
  return true;
}

// Of these an agent speaks when it acts for the epoch. While loading, the journal knows of none that does.
template <typename Body>
constexpr bool kTellsThatItActs = std::is_same_v<Body, EpochSpawned> || std::is_same_v<Body, LoopBegan> ||
                                  std::is_same_v<Body, EpochStopped> || std::is_same_v<Body, SpawnFailed>;

template <typename Body>
void Hear(Turn& turn, const Body& body) {
  if (!IsHeard(turn.state, body)) return Ignore(turn);
  if constexpr (kTellsThatItActs<Body>) {
    if (turn.state.mode == Mode::kLoading) return On(turn, JournalBehind{body.epoch});
  }
  On(turn, body);
}

absl::Status ValidateIncidents(const State& state) {
  std::set<size_t> watched;  // open while an agent is out of reach, or a loss is bad
  for (const auto& [node, lost] : state.lost_agents) watched.insert(lost.incident);
  if (state.bad_loss) watched.insert(*state.bad_loss);
  for (size_t i = 0; i < state.incidents.size(); ++i) {
    const incident::Incident& incident = state.incidents[i];
    const bool open = state.open == i;
    if (incident.id != static_cast<int64_t>(i) + 1) return FailedPrecondition("incident {} has id {}", i, incident.id);
    if ((open || watched.contains(i)) != (incident.closed.value == 0))
      return FailedPrecondition("incident {} is {} but closed at {} ns", i, open ? "open" : "shut",
                                incident.closed.value);
    if (incident.findings.empty()) return FailedPrecondition("incident {} has no finding", i);
  }
  if (state.open && *state.open >= state.incidents.size())
    return FailedPrecondition("open incident {} of {}", *state.open, state.incidents.size());
  return absl::OkStatus();
}

}  // namespace

void Ignore(Turn& turn) { ++turn.state.ignored_events; }

void Ask(Turn& turn) {
  const std::vector<Command> pending = PendingCommands(turn.state);
  turn.commands.insert(turn.commands.begin(), pending.begin(), pending.end());
}

Nanos Settle(const State& state, Nanos moment) {
  return std::clamp(moment, std::min(state.settled, state.now), state.now);
}

incident::Incident& Open(State& state) {
  LS_CHECK(state.open.has_value(), "mode {}", ModeName(state.mode));
  return state.incidents[*state.open];
}

void Act(Turn& turn, incident::ActionKind kind, std::string text, bool done) {
  Open(turn.state).actions.push_back({kind, std::move(text), done, turn.at});
}

void AnnounceOpen(Turn& turn) { turn.commands.push_back(Announce{WithPhases(turn.state, *turn.state.open, turn.at)}); }

void AnnounceIncident(Turn& turn, size_t index) {
  turn.commands.push_back(Announce{WithPhases(turn.state, index, turn.at)});
}

size_t AddIncident(Turn& turn, Nanos opened) {
  incident::Incident incident;
  incident.id = static_cast<int64_t>(turn.state.incidents.size()) + 1;
  incident.opened = opened;
  incident.opened_wall = turn.wall - (turn.at - opened);
  turn.state.incidents.push_back(std::move(incident));
  return turn.state.incidents.size() - 1;
}

void CloseIncident(Turn& turn, size_t index, std::string text) {
  incident::Incident& incident = turn.state.incidents[index];
  incident.actions.push_back({incident::ActionKind::kNote, std::move(text), true, turn.at});
  incident.closed = {std::max<int64_t>(turn.at.value, 1)};
  AnnounceIncident(turn, index);
}

void CloseIncident(Turn& turn) {
  Open(turn.state).closed = {std::max<int64_t>(turn.at.value, 1)};
  AnnounceOpen(turn);
  turn.state.open.reset();
}

void CloseUnseen(Turn& turn) {
  const State& state = turn.state;
  if (!state.unseen || !state.open || state.mode != Mode::kRunning) return;
  if (state.fault.epoch == state.epoch && !IsForTheRecord(state)) return;
  NoteUnseenGoesOn(turn);
}

void Advance(Turn& turn, const Progress& seen) {
  State& state = turn.state;
  if (!state.in_loop || seen.step <= state.progress.step) return;
  state.progress = {seen.step, std::max(state.progress.step_end, Settle(state, seen.step_end))};
  state.frontier = std::max(state.frontier, seen.step);
  state.recomputing = state.recomputing && seen.step < state.frontier;
  const bool left_alone = state.mode == Mode::kRunning && !state.paused;
  if (!left_alone || !state.open || seen.step < state.fault.close_at_step) return;
  if (state.fault.epoch == state.epoch) Act(turn, incident::ActionKind::kNote, "the job went on by itself");
  CloseIncident(turn);
  EnterPhaseNow(state, state.progress.step_end);
}

// Of processes that were killed, or that have their grace before they are.
static WaitForStop WaitForEnd(const State& state) {
  return {state.epoch, state.kill_grace + state.spec.policy.stuck_within};
}

void ForgetLoop(State& state) {
  state.in_loop = state.unseen = state.recomputing = false;
  state.spawned = {};
}

bool TrainsUnseen(const State& state, Nanos now) {
  const bool told_steps = state.frontier >= 0;  // in an epoch before this one
  return state.mode == Mode::kStarting && state.spawned.value != 0 && !state.paused && !told_steps &&
         now - state.spawned >= ToNanos(kUntilUnseen);
}

void Poison(State& state, const CheckpointId& from) {
  state.fault.bad_from = state.fault.bad_from < 0 ? from.step : std::min(state.fault.bad_from, from.step);
  for (EpochId epoch = from.epoch; epoch <= state.epoch; epoch = Next(epoch)) {
    const int64_t step = epoch == from.epoch ? from.step : 0;  // later ones never had a finite loss
    const auto known = std::ranges::find(state.poisoned, epoch, &CheckpointId::epoch);
    if (known == state.poisoned.end()) {
      state.poisoned.push_back({epoch, step});
    } else {
      known->step = std::min(known->step, step);
    }
  }
}

bool AllExited(const State& state) { return state.exits.size() == static_cast<size_t>(state.spec.ranks); }

void BeginFinish(Turn& turn, int exit_code, std::string verdict, Seconds grace) {
  State& state = turn.state;
  const bool already_killed = state.mode == Mode::kStopping;
  const bool already_gone = Is(state, {Mode::kProbing, Mode::kChoosing});
  state.mode = Mode::kFinishing;
  state.awaited.clear();
  state.paused = false;
  state.exit_code = exit_code;
  state.verdict = std::move(verdict);
  state.kill_grace = grace;
  state.ledger.Enter(Phase::kShutdown, turn.at, 0);
  if (state.open && exit_code != 0) Act(turn, incident::ActionKind::kStop, state.verdict);
  if (already_gone) return FinishNow(turn);
  if (already_killed) return turn.commands.push_back(WaitForEnd(state));
  Ask(turn);
}

void FinishNow(Turn& turn) {
  State& state = turn.state;
  state.mode = Mode::kFinished;
  state.finished = {std::max<int64_t>(turn.at.value, 1)};
  state.paused = false;
  state.recomputing = false;
  state.ledger.Close(turn.at);
  if (state.open) CloseIncident(turn);
  for (const auto& [node, lost] : std::exchange(state.lost_agents, {}))
    CloseIncident(turn, lost.incident, "the job is over");
  if (state.bad_loss) CloseIncident(turn, *std::exchange(state.bad_loss, std::nullopt), "the job is over");
  turn.commands.push_back(Finish{state.exit_code, state.verdict});
}

const char* ModeName(Mode mode) {
  constexpr std::array<const char*, 10> kNames = {"starting", "running",   "confirming", "stopping", "choosing",
                                                  "spawning", "finishing", "finished",   "loading",  "probing"};
  return kNames[static_cast<size_t>(mode)];
}

std::vector<Command> Step(State& state, const Event& event) {
  if (std::holds_alternative<Tick>(event.body)) return {};
  state.now = std::max(state.now, event.at);
  Turn turn{state, state.now, event.wall, {}};
  std::visit([&](const auto& body) { Hear(turn, body); }, event.body);
  const bool may_be_another = !turn.commands.empty();  // who comes and goes is told
  if (may_be_another && (state.worlds.empty() || state.worlds.back().nodes != state.spec.nodes))
    state.worlds.push_back({state.now, state.spec.nodes});
#ifndef NDEBUG
  const absl::Status valid = Validate(state);
  LS_CHECK(valid.ok(), "{} after {}", Message(valid), TypeName(event.body));
#endif
  return std::move(turn.commands);
}

// The ranks that the open incident blames.
static std::vector<RankId> Suspects(const State& state) {
  std::vector<RankId> ranks;
  if (!state.open) return ranks;
  for (const incident::Suspect& suspect : incident::Lead(state.incidents[*state.open]).suspects)
    if (const std::optional<RankId> rank = incident::RankOf(suspect)) ranks.push_back(*rank);
  return ranks;
}

// Who has not heard where the first epoch of a world began has not taken its place in it: it would be the only one left
// that counts as before.
static std::vector<Command> Kill(const State& state) {
  std::vector<Command> commands;
  if (state.world_since == state.epoch) commands.push_back(PublishRestore{state.epoch, state.restore});
  commands.push_back(KillEpoch{state.epoch, Seconds{0}, SIGTERM, Suspects(state), IsChanging(state)});
  if (!state.fault.plan.evict.empty()) commands.push_back(WaitForStop{state.epoch, state.spec.policy.stop_within});
  return commands;
}

std::vector<Command> PendingCommands(const State& state) {
  switch (state.mode) {
    case Mode::kStarting:
    case Mode::kRunning:
      return {};
    case Mode::kConfirming:
      if (state.fault.keeping_stacks) return {KeepStacks{state.epoch, state.incidents[*state.open].id}};
      return {WaitForCulprit{state.epoch, Seconds{1}}};
    case Mode::kStopping:
      return Kill(state);
    case Mode::kProbing: {
      const bool diagnoses = state.fault.plan.rung == Rung::kDiagnose;
      return {Probe{state.epoch, state.fault.plan.rung, state.incidents[*state.open].id,
                    diagnoses ? state.spec.policy.diagnose_within : state.spec.policy.replay_within}};
    }
    case Mode::kLoading:
      return {ChooseRestore{state.epoch}};
    case Mode::kChoosing:
      return {ChooseRestore{Next(state.epoch), state.poisoned}};
    case Mode::kSpawning:
      return {PublishRestore{state.epoch, state.restore},
              Spawn{.epoch = state.epoch, .restart_count = state.restarts, .version = VersionToRun(state)}};
    case Mode::kFinishing:
      return {KillEpoch{state.epoch, state.kill_grace, state.kill_signal}, WaitForEnd(state)};
    case Mode::kFinished:
      return {Finish{state.exit_code, state.verdict}};
  }
  return {};
}

absl::Status Validate(const State& state) {
  LS_RETURN_IF_ERROR(ValidateIncidents(state));
  const bool begun = state.epoch.value() != 0;
  if (begun && state.epoch.value() != static_cast<uint64_t>(state.restarts) + state.spec.first_epoch.value()) {
    return FailedPrecondition("epoch {} after {} restarts", state.epoch.value(), state.restarts);
  }
  if (state.progress.step > state.frontier)
    return FailedPrecondition("step {} beyond the frontier {}", state.progress.step, state.frontier);
  if (state.recomputing && !state.open) return FailedPrecondition("recomputing on account of no incident");
  if (Is(state, {Mode::kConfirming, Mode::kStopping, Mode::kProbing, Mode::kChoosing}) && !state.open)
    return FailedPrecondition("{} without an incident", ModeName(state.mode));
  if (state.mode == Mode::kProbing && !IsProbe(state.fault.plan.rung))
    return FailedPrecondition("probing, and the plan is to {}", RungName(state.fault.plan.rung));
  if (state.running < 0 || state.running >= static_cast<int>(state.versions.size()))
    return FailedPrecondition("version {} runs, of {}", state.running, state.versions.size());
  if (const VersionStage stage = state.versions[static_cast<size_t>(state.running)].stage;
      stage != VersionStage::kGood && stage != VersionStage::kOnTrial)
    return FailedPrecondition("version {} runs, and is {}", state.running, VersionStageName(stage));
  if (state.paused && !Is(state, {Mode::kSpawning, Mode::kStarting, Mode::kRunning}))
    return FailedPrecondition("paused while {}", ModeName(state.mode));
  if (state.mode == Mode::kFinished && (state.verdict.empty() || state.open))
    return FailedPrecondition("finished without a verdict or with an open incident");
  for (const auto& [node, awaited] : state.awaited) {
    if (state.mode != Mode::kFinished && !state.lost_agents.contains(node))
      return FailedPrecondition("node {} is awaited, and its agent is in reach", node);
  }
  if (state.spec.most_nodes > 0 && static_cast<int>(state.spec.nodes.size()) < state.spec.least_nodes)
    return FailedPrecondition("a world of {} nodes, {} is the least", state.spec.nodes.size(), state.spec.least_nodes);
  if (!state.vacated.empty() && Is(state, {Mode::kSpawning, Mode::kStarting, Mode::kRunning}))
    return FailedPrecondition("{} with nodes that nobody has", ModeName(state.mode));
  if (state.exits.empty()) return absl::OkStatus();
  for (const RankId rank : {state.exits.begin()->first, state.exits.rbegin()->first}) {
    if (rank.value() < 0 || rank.value() >= state.spec.ranks)
      return FailedPrecondition("exit of rank {} of {}", rank.value(), state.spec.ranks);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::control
