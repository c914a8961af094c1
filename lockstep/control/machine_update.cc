// Versions of what the workers run: one is asked for, waits for a restart or makes one, is on trial for some steps, and
// is accepted or taken back.
#include <algorithm>

#include "lockstep/control/turn.h"

namespace lockstep::control {
namespace {

using incident::ActionKind;
using incident::Finding;
using incident::Suspect;
using incident::Syndrome;

// Of a version on trial whose pace stays unknown: so many times its steps, and it is accepted all the same.
constexpr int64_t kLongestTrial = 10;
// checkpoint.py refuses to overwrite what the job has while it is "1".
constexpr char kOnTrialVariable[] = "LOCKSTEP_ON_TRIAL";

Update& Running(State& state) { return state.versions[static_cast<size_t>(state.running)]; }
const Update& Running(const State& state) { return state.versions[static_cast<size_t>(state.running)]; }

Update* Find(State& state, VersionStage stage) {
  const auto found =
      std::find_if(state.versions.begin(), state.versions.end(), [&](const Update& u) { return u.stage == stage; });
  return found == state.versions.end() ? nullptr : &*found;
}

Update* Find(State& state, int number, VersionStage stage) {
  if (number < 0 || number >= static_cast<int>(state.versions.size())) return nullptr;
  Update& update = state.versions[static_cast<size_t>(number)];
  return update.stage == stage ? &update : nullptr;
}

// Waiting, or about to.
Update* Coming(State& state) {
  Update* waiting = Find(state, VersionStage::kWaiting);
  return waiting != nullptr ? waiting : Find(state, VersionStage::kCopying);
}

void Drop(Update& update, std::string why) {
  update.stage = VersionStage::kDropped;
  update.why = std::move(why);
}

// On top of the newest that is to run, or runs.
Update Compose(State& state, const UpdateAsked& event, Nanos at) {
  const Update* coming = Coming(state);
  const Update& base = coming != nullptr ? *coming : Running(state);
  Update update;
  update.version = base.version;
  update.version.number = static_cast<int>(state.versions.size());
  if (!event.code.empty()) {
    update.version.code = event.code;
    update.version.hash = event.hash;
  }
  for (const auto& [name, value] : event.env) update.version.env[name] = value;
  const bool copied = update.version.code.empty() || (event.code.empty() && base.stage != VersionStage::kCopying);
  update.stage = copied ? VersionStage::kWaiting : VersionStage::kCopying;
  update.base = base.version.number;
  update.now = event.now;
  update.deadline = at + ToNanos(event.within);
  return update;
}

bool IsSame(const Version& a, const Version& b) {
  return a.code.empty() == b.code.empty() && a.hash == b.hash && a.env == b.env;
}

std::string WhyNot(const State& state) {
  if (state.spec.observe_only) return "this run only observes (--observe-only)";
  if (state.spec.policy.dry_run) return "dry run: it would be done (dry_run of the policy)";
  if (state.mode == Mode::kFinishing) return "the job is ending";
  return "";
}

// It asks for what runs: nothing is to come. Old journals do not take back what they had wait.
void AskedForWhatRuns(State& state, const UpdateAsked& event, Update& update) {
  Update* coming = event.takes_back ? Coming(state) : nullptr;
  if (coming == nullptr) return Drop(update, fmt::format("nothing changes: version {} runs already", state.running));
  update.took_back = coming->version.number;
  Drop(*coming, fmt::format("taken back by version {}, which is what runs", update.version.number));
  Drop(update, fmt::format("version {} is taken back: version {} runs on", update.took_back, state.running));
}

// What builds on a version that turned out bad has its fault too.
void DropWhatBuildsOn(State& state, int bad) {
  for (Update& update : state.versions) {
    const bool coming = update.stage == VersionStage::kWaiting || update.stage == VersionStage::kCopying;
    if (coming && update.base == bad) Drop(update, fmt::format("it builds on version {}, which was bad", bad));
  }
}

int GoodBefore(const State& state) {
  for (int number = state.running - 1; number >= 0; --number)
    if (state.versions[static_cast<size_t>(number)].stage == VersionStage::kGood) return number;
  return -1;
}

Finding AskedFinding(const State& state, const Update& update) {
  Finding finding;
  finding.syndrome = Syndrome::kUpdate;
  finding.suspects = {{Suspect::Kind::kSoftware, fmt::format("version {}", update.version.number)}};
  finding.evidence = {WhatIsNew(update.version)};
  finding.since = state.now;  // until now the job trained
  return finding;
}

double Slowdown(const State& state) { return state.step_time.value / state.step_time_before.value; }

Finding SlowFinding(const State& state) {
  Finding finding;
  finding.syndrome = Syndrome::kJobSlow;
  finding.suspects = {{Suspect::Kind::kSoftware, fmt::format("the job under version {}", state.running)}};
  finding.evidence = {fmt::format("a step takes {:.3g} ms, {:.3g} before it: {:.0f} % more, and update.slower is {} %",
                                  1e3 * state.step_time.value, 1e3 * state.step_time_before.value,
                                  100 * (Slowdown(state) - 1), state.spec.policy.update_slower)};
  finding.since = state.now;
  return finding;
}

bool IsSlower(const State& state) {
  if (state.step_time.value <= 0 || state.step_time_before.value <= 0) return false;
  return Slowdown(state) > 1 + state.spec.policy.update_slower / 100.0;
}

std::string WhyUncompared(const State& state) {
  if (state.step_time_before.value <= 0) return ", uncompared: how long a step took before it is not known";
  if (state.step_time.value <= 0) return ", uncompared: too few looks told how long its steps take";
  return "";
}

void Accept(State& state) {
  Running(state).stage = VersionStage::kGood;
  Running(state).why = state.unseen ? fmt::format("accepted after {:.0f} s, uncompared: it tells no steps",
                                                  ToSeconds(state.now - state.loop_began).value)
                                    : fmt::format("accepted at step {}{}", state.progress.step, WhyUncompared(state));
}

// A restart for an update alone: as soon as one can be made.
void StartUpdate(Turn& turn) {
  State& state = turn.state;
  const Update* waiting = Find(state, VersionStage::kWaiting);
  const bool acts = state.mode == Mode::kSpawning || state.mode == Mode::kStarting || state.mode == Mode::kRunning;
  if (waiting == nullptr || !waiting->now || !acts || state.paused) return;
  LeadWith(turn, AskedFinding(state, *waiting));
}

// Copies of what the run began with: of all nodes, or why one has none.
void FirstKept(State& state, const CodeKept& event) {
  static constexpr char kNoCopy[] = "a way back to it takes what is there then: ";
  std::string& why = state.versions.front().why;
  if (event.hash.empty()) {
    if (!why.starts_with(kNoCopy)) why = kNoCopy + event.error;  // one node's reason is enough
    return;
  }
  state.first_code = {event.hash, {}};
  for (const NodeSpec& node : state.spec.nodes) state.first_code.nodes.insert(node.token);
  why = event.error.empty() ? "" : "a way back to it takes a copy: " + event.error;
}

// Empty unless all nodes have the same copy: a standby that took a place may have another one, or none yet.
std::string CopyOfAll(const State& state) {
  const auto has = [&](const NodeSpec& node) { return state.first_code.nodes.contains(node.token); };
  return std::ranges::all_of(state.spec.nodes, has) ? state.first_code.hash : "";
}

bool CanBeBlamed(Symptom symptom, Syndrome lead) {
  switch (symptom) {
    case Symptom::kProgram:
    case Symptom::kCrash:
    case Symptom::kHang:
    case Symptom::kNan:
      return true;
    case Symptom::kUpdate:
      return lead == Syndrome::kJobSlow;
    default:
      return false;
  }
}

}  // namespace

Version VersionToRun(const State& state) {
  Version version = Running(state).version;
  version.kept = version.code.empty() && state.versions.size() > 1 && !state.kept.empty();
  if (version.kept) version.hash = state.kept;
  // Also "0": a rank that keeps its process keeps what it was told before, too.
  if (version.number > 0) version.env[kOnTrialVariable] = IsOnTrial(state) ? "1" : "0";
  return version;
}

std::optional<Version> VersionToCopy(const State& state) {
  for (const Update& update : state.versions)
    if (update.stage == VersionStage::kCopying) return update.version;
  return std::nullopt;
}

std::optional<int> UpdateThatIsDue(const State& state, Nanos now) {
  for (const Update& update : state.versions)
    if (update.stage == VersionStage::kWaiting && !update.now && now >= update.deadline) return update.version.number;
  return std::nullopt;
}

bool CanRollBack(const State& state) { return GoodBefore(state) >= 0; }

bool HasProvenItself(const State& state, Nanos now) {
  return state.unseen && now - state.loop_began > ToNanos(state.spec.policy.again_within);
}

bool IsTrialOver(const State& state, const Progress& progress, Seconds step_time, Nanos now) {
  if (!IsOnTrial(state) || state.mode != Mode::kRunning) return false;
  if (HasProvenItself(state, now)) return true;  // no step can end its trial: time must do
  if (state.trial_ends == 0 || progress.step < state.trial_ends) return false;
  const int64_t begun = state.trial_ends - state.spec.policy.update_steps;
  const bool long_enough = progress.step - begun >= kLongestTrial * state.spec.policy.update_steps;
  return step_time.value > 0 || state.step_time_before.value <= 0 || long_enough;
}

bool IsChanging(const State& state) {
  const bool waits = std::any_of(state.versions.begin(), state.versions.end(),
                                 [](const Update& update) { return update.stage == VersionStage::kWaiting; });
  return state.fault.plan.rung == Rung::kRollback || waits;
}

bool IsOnTrial(const State& state) { return Running(state).stage == VersionStage::kOnTrial; }

bool BlamesTrial(const State& state) {
  const Policy& policy = state.spec.policy;
  if (!state.open || !IsOnTrial(state) || !policy.rollback || policy.dry_run) return false;
  if (HasProvenItself(state, state.now)) return false;
  return CanBeBlamed(SymptomOf(state), incident::Lead(state.incidents[*state.open]).syndrome);
}

void TakeVersion(Turn& turn) {
  State& state = turn.state;
  state.kept = CopyOfAll(state);
  Update* next = Find(state, VersionStage::kWaiting);
  if (next == nullptr || state.fault.plan.rung == Rung::kRollback) return;
  Update& before = Running(state);
  if (before.stage == VersionStage::kGood) state.step_time_before = state.step_time;
  if (before.stage == VersionStage::kOnTrial)
    Drop(before, fmt::format("version {} came before its trial was over", next->version.number));
  next->stage = VersionStage::kOnTrial;
  state.running = next->version.number;
  state.step_time = {};
  state.trial_ends = 0;
  Act(turn, ActionKind::kHotUpdate,
      fmt::format("{} in place of version {}", VersionText(next->version), before.version.number));
}

void BeginTrial(State& state) {
  if (!IsOnTrial(state)) return;
  state.trial_ends = std::max<int64_t>(1, state.progress.step + state.spec.policy.update_steps);
}

void JudgeTrial(Turn& turn, Seconds step_time) {
  State& state = turn.state;
  if (step_time.value > 0) state.step_time = step_time;
  if (state.paused || !IsTrialOver(state, state.progress, step_time, state.now)) return;
  const bool may_roll_back = state.spec.policy.rollback && CanRollBack(state);
  if (IsSlower(state) && may_roll_back) return LeadWith(turn, SlowFinding(state));
  Accept(state);
}

void RollBack(Turn& turn) {
  State& state = turn.state;
  const int to = GoodBefore(state);
  Update& bad = Running(state);
  bad.stage = VersionStage::kBad;
  bad.why = fmt::format("incident {}: {}", Open(state).id, incident::Headline(Open(state)));
  DropWhatBuildsOn(state, state.running);
  ActOnPlan(turn, ActionKind::kRollback,
            fmt::format("back to {}: version {} is not taken again by itself",
                        VersionText(state.versions[static_cast<size_t>(to)].version), state.running));
  state.running = to;
  state.step_time = state.step_time_before = {};
  state.trial_ends = 0;
  state.last_exception = {};  // of other code
}

void ReconsiderUpdate(Turn& turn) { StartUpdate(turn); }

void On(Turn& turn, const UpdateAsked& event) {
  State& state = turn.state;
  Update update = Compose(state, event, turn.at);
  if (std::string why = WhyNot(state); !why.empty()) {
    Drop(update, std::move(why));
  } else if (IsSame(update.version, Running(state).version)) {
    AskedForWhatRuns(state, event, update);
  } else if (Update* coming = Coming(state)) {
    update.base = coming->base;
    Drop(*coming, fmt::format("version {} holds it", update.version.number));
  }
  state.versions.push_back(std::move(update));
  if (state.versions.back().stage == VersionStage::kCopying)
    turn.commands.push_back(KeepCode{state.versions.back().version});
  StartUpdate(turn);
}

void On(Turn& turn, const CodeKept& event) {
  if (event.version == 0) return FirstKept(turn.state, event);
  Update* update = Find(turn.state, event.version, VersionStage::kCopying);
  if (update == nullptr) return Ignore(turn);
  if (!event.error.empty()) return Drop(*update, event.error);
  update->stage = VersionStage::kWaiting;
  StartUpdate(turn);
}

void On(Turn& turn, const UpdateDue& event) {
  Update* update = Find(turn.state, event.version, VersionStage::kWaiting);
  if (update == nullptr) return Ignore(turn);
  update->now = true;
  StartUpdate(turn);
}

}  // namespace lockstep::control
