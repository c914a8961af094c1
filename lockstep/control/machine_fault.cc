// What happens when something goes wrong: who is the culprit, is there evidence enough, and is a restart of any use.
#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/control/turn.h"

namespace lockstep::control {
namespace {

using incident::ActionKind;
using incident::Finding;
using incident::Syndrome;

constexpr int kMostFreeRetries = 3;

// One that raised has that for its reason, though gloo aborted it, or we killed it, while it still unwound.
bool DiedBySignal(const RankExited& event) { return event.status.signal != 0 && !event.exception; }

std::string SignalText(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? fmt::format("SIG{} (signal {})", name, signal) : fmt::format("signal {}", signal);
}

std::string ExceptionText(const ExceptionInfo& exception) {
  return exception.where.empty() ? exception.type : fmt::format("{} at {}", exception.type, exception.where);
}

// The last step that the rank finished. Of the slowest rank of other nodes only what their agents said last is known:
// up to half a second ago.
int64_t LastStep(const State& state, int64_t told) { return std::max(told, state.progress.step); }

// The last that one of those ranks finished which left.
int64_t LastStepOf(const State& state, const Finding& finding) {
  int64_t step = state.progress.step;
  for (const incident::Suspect& suspect : finding.suspects) {
    const std::optional<RankId> rank = incident::RankOf(suspect);
    if (rank && state.exits.contains(*rank)) step = std::max(step, state.exits.at(*rank).step);
  }
  return step;
}

// " in step 17", the one that was under way.
std::string StepText(const State& state, int64_t finished, const char* before) {
  if (state.unseen) return "";
  return state.in_loop ? fmt::format(" in step {}", finished + 1) : before;
}

// What tells no steps may have been in its loop for long.
const char* BeforeLoop(const State& state) {
  return state.frontier < 0 ? " before the first step was told" : " before the training loop began";
}

// ": it went wrong", if it says anything.
std::string MessageText(const ExceptionInfo& exception) {
  return exception.message.empty() ? "" : ": " + exception.message;
}

std::string ExitText(const State& state, const RankExited& event) {
  const std::string when = StepText(state, LastStep(state, event.step), BeforeLoop(state));
  if (DiedBySignal(event)) return SignalText(event.status.signal) + when;
  if (!event.exception) return fmt::format("exit code {}{}", event.status.code, when);
  return ExceptionText(*event.exception) + when + MessageText(*event.exception);
}

Finding ExitFinding(const State& state, const RankExited& event) {
  Finding finding;
  finding.syndrome = DiedBySignal(event) ? Syndrome::kCrash : Syndrome::kExit;
  finding.suspects = {incident::SuspectRank(event.rank)};
  finding.evidence = {ExitText(state, event)};
  finding.since = event.exited.value == 0 ? state.now : std::min(event.exited, state.now);
  return finding;
}

// The open incident is of this epoch and has a certain culprit: whatever comes now joins it.
bool HasCulprit(const State& state) { return state.open && state.fault.epoch == state.epoch && state.fault.led; }

bool IsSame(const Finding& a, const Finding& b) { return a.syndrome == b.syndrome && a.suspects == b.suspects; }

// Ledger at a fault: the work since the last finished step is lost; then it went unnoticed, then it was judged, then it
// is repaired.
void WriteFault(State& state) {
  const Fault& fault = state.fault;
  const int64_t id = Open(state).id;
  const Nanos since = Settle(state, fault.since);
  // How much of it a job must do again that tells no steps nobody knows.
  if (state.in_loop && !state.unseen)
    state.ledger.Enter(Phase::kRecompute, std::min(since, Settle(state, state.progress.step_end)), id);
  state.ledger.Enter(Phase::kDetect, since, id);
  state.ledger.Enter(Phase::kDecide, std::max(since, fault.noticed), id);
  if (fault.acted.value != 0) state.ledger.Enter(Phase::kRestart, fault.acted, id);
}

// Nothing can be said of the job's progress, and a number of restarts was asked for.
bool RestartsUnseen(const State& state) { return state.frontier < 0 && state.spec.restarts_without_steps; }

// Between the choice of a port and its use another process may take it: nobody's fault, and the next port is another
// one. One that is never free is no accident.
bool IsFreeRetry(const State& state, const RankExited& event) {
  return event.exception && event.exception->port_taken && (!state.in_loop || state.unseen) &&
         state.free_retries_in_row < kMostFreeRetries;
}

// Remembers what ended the epoch, and whether that struck in the one before too, at the same step. It may differ by
// one, for ranks are not in lock step to the last statement.
bool Repeats(State& state, const std::string& what, int64_t step) {
  // Several ranks may raise it in one epoch.
  if (state.last_exception.epoch != state.epoch) state.earlier_exception = state.last_exception;
  const SeenException& earlier = state.earlier_exception;
  state.last_exception = {what, step, state.epoch};
  return !what.empty() && what == earlier.what && std::abs(step - earlier.step) <= 1;
}

std::string RepeatText(const State& state) {
  const SeenException& last = state.last_exception;
  const int64_t earlier = state.earlier_exception.step;
  std::string where = fmt::format("twice at step {}", last.step);
  if (last.step != earlier) where = fmt::format("at step {} and at step {}", earlier, last.step);
  if (state.frontier < 0 && (!state.in_loop || state.unseen)) where = "twice in a row";
  return fmt::format("{} struck {}: this is in the program, not in the machine", last.what, where);
}

std::string FirstStepText(const State& state, const RankExited& event) {
  const char* when = state.in_loop && !state.unseen ? " before the first step" : "";
  const char* why = state.unseen ? "nobody knows whether a restart helps a job that tells no steps; --max-restarts N "
                                   "allows N of them, whatever the failure"
                                 : "this is in the program, not in the machine";
  return fmt::format("rank {} failed{}: {}: {}", event.rank.value(), when, ExitText(state, event), why);
}

// Returns a verdict when no restart can help: an exception struck twice in a row at one step, or before there was any
// step to go back to.
std::string JudgeProgram(State& state, const RankExited& event) {
  const std::string what = event.exception ? ExceptionText(*event.exception) : "";
  const bool repeated = Repeats(state, what, LastStep(state, event.step) + 1);
  state.fault.free_retry = IsFreeRetry(state, event);
  state.fault.traceable = !what.empty();
  if (DiedBySignal(event) || state.fault.free_retry || RestartsUnseen(state)) return "";
  if (state.frontier < 0) return FirstStepText(state, event);
  return repeated ? RepeatText(state) + MessageText(*event.exception) : "";
}

// The same of ranks that left with 0 while others trained: a script whose data end early there does so each time.
std::string JudgeEarlyEnd(State& state, const Finding& lead) {
  std::vector<std::string> ranks;
  for (const incident::Suspect& suspect : lead.suspects) ranks.push_back(suspect.name);
  const bool repeated = Repeats(state, "exit code 0, while others still trained,", LastStepOf(state, lead) + 1);
  state.fault.traceable = false;
  const bool may_differ = RestartsUnseen(state) || HasProvenItself(state, state.now);
  if (!repeated || may_differ) return "";
  return fmt::format("rank {}: {}", fmt::join(ranks, ", "), RepeatText(state));
}

void CountProgress(State& state) {
  if (state.fault.free_retry) ++state.free_retries_in_row;
  if (state.fault.free_retry || BlamesTrial(state)) {
    ++state.free_retries;
    return;
  }
  if (state.restarts == 0) return;
  // A hang may be noticed long after it began.
  const bool grew = state.frontier > state.frontier_at_restart || HasProvenItself(state, state.fault.since);
  state.restarts_without_progress = grew ? 0 : state.restarts_without_progress + 1;
}

std::string RestartText(const State& state, const std::string& from) {
  return fmt::format("restart of all {} ranks from {}", state.spec.ranks, from);
}

// --observe-only: says what would have been done, and goes on watching.
void Witness(Turn& turn) {
  State& state = turn.state;
  const bool useless = !state.fault.program_error.empty();
  Resolve(turn);
  ActOnPlan(turn, useless ? ActionKind::kStop : ActionKind::kRestart,
            useless ? state.fault.program_error
                    : RestartText(state, state.frontier < 0 ? "the beginning" : "the newest committed checkpoint"),
            false);
  if (state.mode == Mode::kConfirming) state.mode = state.in_loop ? Mode::kRunning : Mode::kStarting;
  state.fault.close_at_step = state.progress.step + 1;
  AnnounceOpen(turn);
}

// The stacks of survivors tell nothing about a rank that is gone, and cost time.
bool NeedsStacks(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::kCrash:
    case Syndrome::kExit:
    case Syndrome::kWatcherLost:
    case Syndrome::kNodeLost:
    case Syndrome::kMachineFault:
    case Syndrome::kNetworkFault:
    case Syndrome::kNan:
    case Syndrome::kUpdate:
    case Syndrome::kJobSlow:  // of which only a version on trial is accused
      return false;
    default:
      return true;
  }
}

void KeepStacksFirst(Turn& turn) {
  State& state = turn.state;
  state.mode = Mode::kConfirming;
  state.fault.keeping_stacks = true;
  Ask(turn);
  AnnounceOpen(turn);
}

// The death behind a lost connection may be reported a moment later; until then nobody is named.
void LoseConnection(Turn& turn, const RankExited& event, Finding finding) {
  EnsureIncident(turn);
  if (event.exception->after_loss) turn.state.fault.after_loss[event.rank] = event;
  if (event.exception->timed_out) turn.state.fault.timed_out.insert(event.rank);
  const Nanos since = finding.since;
  Open(turn.state).findings.push_back(std::move(finding));
  Strike(turn, since);
  if (std::exchange(turn.state.mode, Mode::kConfirming) == Mode::kConfirming) return;
  Ask(turn);
}

// Who lost a connection was still in the step that the other one left in: that is told however late, after a long
// forward pass or by a restartable function, which keeps a lost connection to itself for a while. Or in the next one:
// who left may have done its part of a step without finishing it.
bool LeftInItsStep(const State& state, const Departure& exit, const Finding& loss) {
  const std::optional<RankId> loser = incident::RankOf(loss.suspects.front());
  const bool tells = state.in_loop && !state.unseen;
  return tells && loser && state.exits.contains(*loser) && state.exits.at(*loser).step <= exit.step + 1;
}

// Connections break while a process ends, which takes a moment: who left after that is not the cause, nor who left long
// before the first loss, if the others trained on meanwhile or nobody knows of it.
bool IsBehind(const State& state, const Departure& exit, const Finding& loss) {
  constexpr Seconds kSoon{10}, kToEnd{1};  // PATIENCE_S of _restart.py, and as long again
  if (!IsClean(exit.status) || exit.at - loss.since > ToNanos(kToEnd)) return false;
  return loss.since - exit.at <= ToNanos(kSoon) || LeftInItsStep(state, exit, loss);
}

void AddLosers(Finding& finding, const std::vector<incident::Suspect>& losers) {
  for (const incident::Suspect& suspect : losers)
    finding.evidence.push_back(fmt::format("rank {} lost its connection as a consequence", suspect.name));
}

// Those that left as if the training were over, while others still waited for them.
Finding LeftEarly(const State& state, const Finding& loss) {
  Finding finding;
  finding.syndrome = Syndrome::kExit;
  finding.since = loss.since;
  for (const auto& [rank, exit] : state.exits)
    if (IsBehind(state, exit, loss)) finding.suspects.push_back(incident::SuspectRank(rank));
  finding.evidence = {fmt::format("exit code 0{}, while others still trained: the script ended there",
                                  StepText(state, LastStepOf(state, finding), ""))};
  AddLosers(finding, loss.suspects);
  AddLosers(finding, loss.ambiguous_with);
  finding.evidence.push_back(loss.evidence.front());
  return finding;
}

// Whoever lost this connection had handled that, and then met an error of its own. Where an agent is out of reach, the
// loss may be that of its node.
const RankExited* OwnErrorAfter(const State& state, const Finding& loss) {
  const std::optional<RankId> rank = incident::RankOf(loss.suspects.front());
  if (!state.lost_agents.empty()) return nullptr;
  const auto own = rank ? state.fault.after_loss.find(*rank) : state.fault.after_loss.end();
  return own != state.fault.after_loss.end() ? &own->second : nullptr;
}

// Nobody's death is behind it, nor an earlier loss.
void LeadWithOwnError(Turn& turn, Finding lead, const RankExited& event) {
  AddLosers(lead, std::exchange(lead.ambiguous_with, {}));
  turn.state.fault.program_error = JudgeProgram(turn.state, event);
  LeadWith(turn, std::move(lead));
}

// What leads is no exception, which might strike twice.
void ClearException(State& state) {
  state.last_exception = {};
  state.fault.traceable = false;
}

// No death was reported: whoever lost a connection first stands nearest to the cause, unless somebody had left in
// peace, or did not come to a collective.
void LeadWithFirstLoss(Turn& turn) {
  auto& findings = Open(turn.state).findings;
  const auto is_loss = [](const Finding& finding) { return finding.syndrome == Syndrome::kExit && !finding.certain; };
  const auto losses = std::stable_partition(findings.begin(), findings.end(),
                                            [&](const Finding& finding) { return !is_loss(finding); });
  const auto first =
      std::min_element(losses, findings.end(), [](const Finding& a, const Finding& b) { return a.since < b.since; });
  Finding lead = *first;
  for (auto loss = losses; loss != findings.end(); ++loss) {
    if (loss != first)
      lead.ambiguous_with.insert(lead.ambiguous_with.end(), loss->suspects.begin(), loss->suspects.end());
  }
  findings.erase(losses, findings.end());
  if (std::ranges::any_of(turn.state.exits, [&](const auto& one) { return IsBehind(turn.state, one.second, lead); })) {
    lead = LeftEarly(turn.state, lead);
    turn.state.fault.program_error = JudgeEarlyEnd(turn.state, lead);
  } else if (!turn.state.fault.timed_out.empty() && turn.state.lost_agents.empty()) {
    lead = WhoDidNotCome(turn.state, lead);
    ClearException(turn.state);
  } else if (const RankExited* own = OwnErrorAfter(turn.state, lead)) {
    return LeadWithOwnError(turn, std::move(lead), *own);
  } else {
    lead.evidence.push_back("a lost connection is secondary: the cause behind it is unknown");
    ClearException(turn.state);
    turn.state.fault.unexplained = true;
  }
  LeadWith(turn, std::move(lead));
}

// A real death that came before the one that leads is the cause of it; anything else is a consequence and joins as
// evidence. Exits after our own kill tell nothing.
void JoinExit(Turn& turn, const RankExited& event, Finding finding) {
  State& state = turn.state;
  if (state.fault.acted.value != 0 && finding.since >= state.fault.acted) return;
  incident::Incident& incident = Open(state);
  const Finding& lead = incident::Lead(incident);
  if (MayFollowFromLoss(event) || finding.since >= lead.since) {
    const auto position = static_cast<size_t>(&lead - incident.findings.data());
    incident.findings[position].evidence.push_back(
        fmt::format("rank {} left as a consequence: {}", event.rank.value(), finding.evidence.front()));
    return;
  }
  finding.certain = true;
  Nanos since = finding.since;
  incident.findings.insert(incident.findings.begin(), std::move(finding));
  state.fault.unexplained = false;
  Strike(turn, since);
  state.fault.program_error = JudgeProgram(state, event);
  if (state.mode == Mode::kStopping) ResolveAnew(turn);
}

void OnFailure(Turn& turn, const RankExited& event) {
  State& state = turn.state;
  Finding finding = ExitFinding(state, event);
  if (HasCulprit(state)) return JoinExit(turn, event, std::move(finding));
  if (MayFollowFromLoss(event)) return LoseConnection(turn, event, std::move(finding));
  EnsureIncident(turn);
  state.fault.program_error = JudgeProgram(state, event);
  LeadWith(turn, std::move(finding));
}

bool IsLive(Mode mode) {
  return mode == Mode::kSpawning || mode == Mode::kStarting || mode == Mode::kRunning || mode == Mode::kConfirming;
}

Nanos FirstExit(const State& state) {
  Nanos first = state.now;
  for (const auto& [rank, exit] : state.exits) first = std::min(first, exit.at);
  return first;
}

// A version on trial whose ranks all left with 0, and not one loop of a job that has told steps began: also one that
// has nothing left to train restores first. One that tells no steps has proven itself by its time, as in
// HasProvenItself, and may have trained.
bool EndsUnbegun(const State& state) {
  const bool proven =
      state.spawned.value != 0 && FirstExit(state) - state.spawned > ToNanos(state.spec.policy.again_within);
  return IsOnTrial(state) && state.frontier >= 0 && !state.in_loop && !proven;
}

void LeadWithUnbegun(Turn& turn) {
  State& state = turn.state;
  EnsureIncident(turn);
  Finding finding;
  finding.syndrome = Syndrome::kExit;
  finding.suspects = {{incident::Suspect::Kind::kSoftware, fmt::format("version {}", state.running)}};
  finding.evidence = {fmt::format(
      "exit code 0 of all ranks before the training loop began, of a job that stands at step {}", state.frontier)};
  finding.since = FirstExit(state);
  state.fault.program_error = incident::Headline(finding) + ": this is in the program, not in the machine";
  state.fault.traceable = true;
  LeadWith(turn, std::move(finding));
}

// Under --observe-only even what the job leaves behind is not ours to clear away.
void OnAllExited(Turn& turn) {
  State& state = turn.state;
  if (AwaitsCulprit(state)) LeadWithFirstLoss(turn);
  if (!IsLive(state.mode) || state.mode == Mode::kConfirming) return;
  if (EndsUnbegun(state)) return LeadWithUnbegun(turn);
  const bool clean =
      std::all_of(state.exits.begin(), state.exits.end(), [](const auto& exit) { return IsClean(exit.second.status); });
  if (!state.spec.observe_only) return BeginFinish(turn, kExitDone, "completed", {});
  state.exit_code = clean ? kExitDone : kExitFailed;
  state.verdict = clean ? "completed" : "the job failed, and was only observed";
  state.ledger.Enter(Phase::kShutdown, turn.at, 0);
  FinishNow(turn);
}

const char* WhyNamedOnly(Syndrome syndrome) {
  if (incident::IsSlowness(syndrome)) return "named; the job goes on: ";
  return "named; there is not evidence enough to act: ";
}

// No step closes it, but CaughtUp. It is an incident of its own: the job goes on with it, and what strikes meanwhile is
// another one.
void NameBadLoss(Turn& turn, const Finding& finding) {
  State& state = turn.state;
  if (state.bad_loss) return Ignore(turn);
  state.bad_loss = AddIncident(turn, turn.at);
  incident::Incident& incident = state.incidents[*state.bad_loss];
  incident.epoch = state.epoch;
  incident.findings = {finding};
  if (state.spec.policy.nan_restart) {
    const std::string text = RestartText(state, "the newest checkpoint from before it");
    incident.actions.push_back({ActionKind::kRestart, text, false, turn.at});
  } else {
    const std::string text = "named; nan.restart is off: " + incident::Headline(finding);
    incident.actions.push_back({ActionKind::kNote, text, true, turn.at});
  }
  AnnounceIncident(turn, *state.bad_loss);
}

// Time alone names, and so does slowness: it is written down and shown, and nothing is done about it.
void Name(Turn& turn, const Finding& finding) {
  State& state = turn.state;
  if (finding.syndrome == Syndrome::kNan) return NameBadLoss(turn, finding);
  if (state.open && AlreadySaid(state, finding)) return;
  if (!state.open) EnsureIncident(turn);
  Open(state).findings.push_back(finding);
  Act(turn, ActionKind::kNote, WhyNamedOnly(finding.syndrome) + incident::Headline(finding));
  AnnounceOpen(turn);
  CloseUnseen(turn);
}

// Nothing is done about it by force.
bool IsOnlyNamed(const State& state, const Finding& finding) {
  if (finding.syndrome == Syndrome::kNan) return state.spec.observe_only || !state.spec.policy.nan_restart;
  return !finding.certain || incident::IsSlowness(finding.syndrome);
}

}  // namespace

bool AwaitsCulprit(const State& state) { return state.mode == Mode::kConfirming && !state.fault.keeping_stacks; }

bool AlreadySaid(const State& state, const Finding& finding) {
  const auto& findings = state.incidents[*state.open].findings;
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& other) { return IsSame(finding, other); });
}

// An incident that a new fault overtakes is closed, since each restart has an incident of its own.
void EnsureIncident(Turn& turn) {
  State& state = turn.state;
  if (state.open && state.fault.epoch == state.epoch) return;
  const int64_t id = static_cast<int64_t>(state.incidents.size()) + 1;
  if (state.open) {
    Act(turn, ActionKind::kNote,
        fmt::format("incident {} struck before the job was back at step {}", id, state.fault.close_at_step));
    CloseIncident(turn);
  }
  state.open = AddIncident(turn, turn.at);
  Open(state).epoch = state.epoch;
  state.fault = {};
  state.fault.epoch = state.epoch;
  state.fault.close_at_step = state.progress.step + 1;
}

void Strike(Turn& turn, Nanos since) {
  State& state = turn.state;
  if (state.paused) {
    state.paused = false;
    state.settled = turn.at;
  }
  Fault& fault = state.fault;
  fault.since = fault.noticed.value == 0 ? since : std::min(fault.since, since);
  if (fault.noticed.value == 0) fault.noticed = turn.at;
  WriteFault(state);
}

bool IsBudgetSpent(const State& state) {
  return !state.fault.free_retry && !BlamesTrial(state) &&
         state.restarts - state.free_retries >= state.spec.max_restarts;
}

std::string ReasonToEnd(const State& state) {
  if (state.fault.free_retry || BlamesTrial(state)) return "";
  if (!state.fault.program_error.empty()) return state.fault.program_error;
  const std::string last = incident::Headline(state.incidents[*state.open]);
  if (state.restarts_without_progress >= state.spec.no_progress_limit && !RestartsUnseen(state)) {
    const std::string stands =
        state.frontier < 0 ? "none was ever told" : fmt::format("the job stands at step {}", state.frontier);
    return fmt::format("{} restarts in a row brought no new step ({}); the last incident: {}",
                       state.restarts_without_progress, stands, last);
  }
  if (!IsBudgetSpent(state)) return "";
  return fmt::format("all {} restarts that were allowed are used up; the last incident: {}", state.spec.max_restarts,
                     last);
}

void Repair(Turn& turn) {
  State& state = turn.state;
  CountProgress(state);
  Resolve(turn);
  if (state.fault.plan.rung == Rung::kGiveUp) return BeginFinish(turn, kExitFailed, state.fault.plan.reason, {});
  state.mode = Mode::kStopping;
  state.fault.acted = turn.at;
  WriteFault(state);
  Ask(turn);
  AnnounceOpen(turn);
}

void LeadWith(Turn& turn, Finding finding) {
  finding.certain = true;
  EnsureIncident(turn);
  const Nanos since = finding.since;
  const bool keep = NeedsStacks(finding.syndrome) && !AllExited(turn.state);
  // An inspection's word is no failure of the job, nor is an update.
  if (finding.syndrome == Syndrome::kMachineFault || finding.syndrome == Syndrome::kNetworkFault ||
      finding.syndrome == Syndrome::kUpdate)
    turn.state.fault.free_retry = true;
  turn.state.fault.led = true;
  auto& findings = Open(turn.state).findings;
  findings.insert(findings.begin(), std::move(finding));
  Strike(turn, since);
  if (turn.state.spec.observe_only) return Witness(turn);
  keep ? KeepStacksFirst(turn) : Repair(turn);
}

void On(Turn& turn, const RankExited& event) {
  State& state = turn.state;
  const bool is_rank = event.rank.value() >= 0 && event.rank.value() < state.spec.ranks;
  const bool gone = state.mode == Mode::kProbing || state.mode == Mode::kChoosing;
  if (!is_rank || state.exits.contains(event.rank) || gone) return Ignore(turn);
  state.exits[event.rank] = {event.status, event.exited.value == 0 ? turn.at : event.exited, event.step};
  Advance(turn, event.progress);
  if (state.mode == Mode::kFinishing) return;
  if (!IsClean(event.status)) OnFailure(turn, event);
  if (AllExited(state)) OnAllExited(turn);
}

void On(Turn& turn, const Suspected& event) {
  State& state = turn.state;
  if (state.paused || !IsLive(state.mode)) return Ignore(turn);
  Advance(turn, event.progress);
  if (IsOnlyNamed(state, event.finding)) return Name(turn, event.finding);
  if (!HasCulprit(state)) {
    state.last_exception = {};
    LeadWith(turn, event.finding);
  } else if (!AlreadySaid(state, event.finding)) {
    Open(state).findings.push_back(event.finding);
  }
  if (event.bad_from >= 0)
    Poison(state, {event.bad_epoch.value() != 0 ? event.bad_epoch : state.epoch, event.bad_from});
}

void On(Turn& turn, const StacksKept& event) {
  State& state = turn.state;
  if (state.mode != Mode::kConfirming || !state.fault.keeping_stacks) return Ignore(turn);
  state.fault.keeping_stacks = false;
  if (!event.path.empty()) Act(turn, ActionKind::kNote, "the stacks of all ranks are in " + event.path);
  Repair(turn);
}

void On(Turn& turn, const SecondaryGraceOver&) {
  if (!AwaitsCulprit(turn.state)) return Ignore(turn);
  if (const std::optional<int> node = LostReplaceable(turn.state))
    return MayBeAnother(turn.state, *node) ? Ask(turn) : LoseLostNode(turn, *node);
  LeadWithFirstLoss(turn);
  AwaitLost(turn);
}

// What happened in the epochs that nobody wrote down is not known, so the last of them ends, and the next one gets a
// number of its own.
void On(Turn& turn, const JournalBehind& event) {
  State& state = turn.state;
  // While loading, not even the acting epoch has begun.
  const uint64_t known = state.epoch.value() - (state.mode == Mode::kLoading ? 1 : 0);
  if (event.seen.value() <= known) return Ignore(turn);
  const uint64_t missing = event.seen.value() - known;
  state.restarts += static_cast<int>(event.seen.value() - state.epoch.value());
  // Whoever led then kept to the budget: what goes beyond it was free, as a restart for an update or a rollback is.
  state.free_retries += std::max(0, state.restarts - state.free_retries - state.spec.max_restarts);
  state.epoch = event.seen;
  state.world_since = {};  // where that began is not known
  state.exits.clear();
  ForgetLoop(state);
  if (state.mode == Mode::kFinishing) return Ask(turn);
  state.mode = Mode::kStarting;  // it runs, whatever was done to the one before it
  Finding finding;
  finding.syndrome = Syndrome::kWatcherLost;
  finding.suspects = {{incident::Suspect::Kind::kSoftware, "the journal"}};
  finding.evidence = {
      fmt::format("an agent acts for epoch {}, and the journal lacks the last {}", event.seen.value(), missing)};
  finding.since = turn.at;
  LeadWith(turn, std::move(finding));
}

void On(Turn& turn, const SpawnFailed& event) {
  State& state = turn.state;
  if (state.mode != Mode::kSpawning && state.mode != Mode::kStarting) return Ignore(turn);
  if (state.restarts == 0)
    return BeginFinish(turn, kExitFailed, "the workers could not be started: " + event.error, {});
  Finding finding;
  finding.syndrome = Syndrome::kExit;
  finding.suspects = {{incident::Suspect::Kind::kSoftware, "the start of the workers"}};
  finding.evidence = {event.error};
  finding.since = turn.at;
  LeadWith(turn, std::move(finding));
}

}  // namespace lockstep::control
