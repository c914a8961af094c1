// What the policy makes of a fault: the facts that the table asks for, the plan that follows, and its carrying out
// once the epoch is gone.
#include <algorithm>

#include "lockstep/control/keepers.h"
#include "lockstep/control/turn.h"

namespace lockstep::control {
namespace {

using incident::ActionKind;
using incident::Finding;
using incident::Suspect;
using incident::Syndrome;

constexpr Seconds kHour{3600};

// ---- the facts ----

int CountNodes(const State& state) { return std::max(1, static_cast<int>(state.spec.nodes.size())); }

std::string NameOf(const State& state, int node) {
  const auto index = static_cast<size_t>(node);
  return index < state.spec.nodes.size() ? state.spec.nodes[index].name : std::to_string(node);
}

std::optional<int> NodeOf(const State& state, const Suspect& suspect) {
  const std::optional<RankId> rank = incident::RankOf(suspect);
  int first = 0;
  for (size_t i = 0; i < state.spec.nodes.size(); ++i) {
    const NodeSpec& node = state.spec.nodes[i];
    const bool has_rank = rank && rank->value() >= first && rank->value() < first + node.ranks;
    const bool is_it = suspect.kind == Suspect::Kind::kNode && suspect.name == node.name;
    if (has_rank || is_it) return static_cast<int>(i);
    first += node.ranks;
  }
  return std::nullopt;
}

void AddAlerts(const State& state, const std::vector<Alerts::Complaint>& complaints, std::vector<Culprit>& culprits) {
  for (const Alerts::Complaint& complaint : complaints)
    culprits.push_back({complaint.newest.node, NameOf(state, complaint.newest.node), ComplaintText(complaint)});
}

// Whoever takes a place is there for one of them only. Each node once, by the first who names it.
void Complete(const State& state, std::vector<Culprit>& culprits) {
  std::vector<Culprit> distinct;
  std::set<int> named;
  std::vector<NodeSpec> standbys = state.standbys;
  std::set<int> gone = state.vacated;
  for (Culprit& culprit : culprits) {
    if (state.vacated.contains(culprit.node)) continue;  // it is out already
    if (!named.insert(culprit.node).second) continue;
    const bool is_lost = culprit.role == Role::kLoss;
    const auto fits = is_lost ? SuccessorTo(state, culprit.node, standbys) : StandbyFor(state, culprit.node, standbys);
    culprit.replaceable = fits != standbys.end();
    if (culprit.replaceable) standbys.erase(fits);
    if (!culprit.replaceable && gone.insert(culprit.node).second) {
      culprit.replaceable = FitsWithout(state, gone);
      if (!culprit.replaceable) gone.erase(culprit.node);
    }
    culprit.leads = culprit.node == state.spec.leading_node;
    distinct.push_back(std::move(culprit));
  }
  culprits = std::move(distinct);
}

std::vector<Culprit> CulpritsOf(const State& state, Symptom symptom) {
  const Policy& policy = state.spec.policy;
  std::vector<Culprit> culprits;
  if (symptom == Symptom::kNodeLost) {
    const Finding& loss = incident::Lead(state.incidents[*state.open]);
    if (const std::optional<int> node = NodeOf(state, loss.suspects.front()))
      culprits.push_back({*node, NameOf(state, *node), loss.evidence.front(), Role::kLoss});
  } else if (symptom != Symptom::kProgram && symptom != Symptom::kOurs) {
    if (state.open && symptom != Symptom::kMachine && symptom != Symptom::kNetwork) culprits = state.fault.named;
    if (symptom != Symptom::kNetwork) AddAlerts(state, state.alerts.Broken(), culprits);
    const bool one_node = !state.alerts.IsWidespread(policy, state.now);
    if (symptom != Symptom::kMachine && one_node) AddAlerts(state, state.alerts.Unsteady(policy, state.now), culprits);
  }
  Complete(state, culprits);
  return culprits;
}

// What was tried against faults of this kind, while each came soon after the one before, and how long the job ran
// since.
struct Chain {
  int64_t id = 0;
  std::vector<Rung> tried;
  std::optional<Seconds> ran_since;
};

Chain ChainOf(const State& state, Symptom symptom) {
  const int64_t now = state.incidents[*state.open].id;
  Chain chain{now, {}, {}};
  const Climbed* last = nullptr;
  const Climbed* before = nullptr;  // this incident
  for (const Climbed& climbed : state.ladder) {
    if (climbed.symptom != symptom) continue;
    last = &climbed;
    if (climbed.incident != now) before = &climbed;
  }
  const Nanos since = std::min(state.fault.noticed, state.now);
  if (before != nullptr)
    chain.ran_since = before->resumed.value == 0 ? Seconds{} : ToSeconds(std::max(Nanos{}, since - before->resumed));
  const bool goes_on = last != nullptr && last->incident == now;
  const bool again = before != nullptr && *chain.ran_since <= state.spec.policy.again_within;
  if (!goes_on && !again) return chain;
  chain.id = last->chain;
  for (const Climbed& climbed : state.ladder)
    if (climbed.symptom == symptom && climbed.chain == chain.id) chain.tried.push_back(climbed.rung);
  return chain;
}

int EvictedLastHour(const State& state) {
  return static_cast<int>(std::count_if(state.evictions.begin(), state.evictions.end(), [&](const Eviction& eviction) {
    return eviction.joined && state.now - eviction.at < ToNanos(kHour);
  }));
}

FaultFacts FactsOf(const State& state, Symptom symptom) {
  FaultFacts facts;
  facts.symptom = symptom;
  facts.culprits = CulpritsOf(state, symptom);
  facts.widespread = state.alerts.IsWidespread(state.spec.policy, state.now);
  facts.evicted_last_hour = EvictedLastHour(state);
  facts.nodes = CountNodes(state) - static_cast<int>(state.vacated.size());
  facts.standbys = CountFit(state);
  facts.can_roll_back = CanRollBack(state);
  return facts;
}

FaultFacts FactsOfOpen(const State& state, Symptom symptom) {
  FaultFacts facts = FactsOf(state, symptom);
  const Chain chain = ChainOf(state, symptom);
  facts.tried = chain.tried;
  facts.ran_since = chain.ran_since;
  facts.hopeless = ReasonToEnd(state);
  facts.spent = IsBudgetSpent(state);
  facts.on_trial = BlamesTrial(state);
  return facts;
}

// ---- the decision ----

void Keep(Turn& turn, Symptom symptom, const Decision& decision) {
  State& state = turn.state;
  state.decisions.push_back({Open(state).id, turn.at, symptom, decision});
  if (decision.machines_wanted > 0) turn.commands.push_back(AskForNodes{decision.machines_wanted});
}

std::vector<Evictee> EvicteesOf(const State& state, const Decision& decision, const std::vector<Culprit>& culprits) {
  std::vector<Evictee> evict;
  for (const Culprit& culprit : culprits) {
    const bool goes = std::find(decision.nodes.begin(), decision.nodes.end(), culprit.node) != decision.nodes.end();
    if (!goes) continue;
    evict.push_back(
        {culprit.node, state.spec.nodes[static_cast<size_t>(culprit.node)].token, culprit.why, culprit.role});
  }
  return evict;
}

// ---- inspections ----

Finding FindingOf(const State& state, const Alerted& alert) {
  Finding finding;
  finding.syndrome = alert.kind == AlertClass::kMachine ? Syndrome::kMachineFault : Syndrome::kNetworkFault;
  finding.suspects = {{Suspect::Kind::kNode, NameOf(state, alert.node)}};
  finding.evidence = {ComplaintText({alert})};
  finding.certain = true;
  finding.since = state.now;  // until now the job trained
  return finding;
}

bool NeedsAnswer(const Alerted& alert) {
  return !alert.cleared && (alert.kind == AlertClass::kMachine || alert.kind == AlertClass::kNetwork);
}

bool Acts(const State& state) {
  return state.mode == Mode::kSpawning || state.mode == Mode::kStarting || state.mode == Mode::kRunning;
}

// The job runs on: an incident for the record.
void Note(Turn& turn, Finding finding, Symptom symptom, const Decision& decision) {
  State& state = turn.state;
  if (state.open && AlreadySaid(state, finding)) return;
  if (!state.open) EnsureIncident(turn);
  Open(state).findings.push_back(std::move(finding));
  const bool would = decision.rung == Rung::kEvict;  // --observe-only
  std::string text = would ? "eviction" : "named; the job goes on";
  for (const Refusal& refusal : decision.refused) text += fmt::format("; {}: {}", RungName(refusal.rung), refusal.why);
  Open(state).actions.push_back({would ? ActionKind::kEvict : ActionKind::kNote, std::move(text), !would, turn.at,
                                 RungName(decision.rung), decision.reason});
  Keep(turn, symptom, decision);
  AnnounceOpen(turn);
  CloseUnseen(turn);
}

bool AnswerAlert(Turn& turn, const Alerted& alert, bool note) {
  State& state = turn.state;
  const Symptom symptom = alert.kind == AlertClass::kMachine ? Symptom::kMachine : Symptom::kNetwork;
  const Decision decision = AnswerToAlerts(state, symptom);
  const bool named = std::find(decision.nodes.begin(), decision.nodes.end(), alert.node) != decision.nodes.end();
  const bool evicts = decision.rung == Rung::kEvict && named && !state.spec.observe_only;
  if (evicts) LeadWith(turn, FindingOf(state, alert));
  if (!evicts && note) Note(turn, FindingOf(state, alert), symptom, decision);
  return evicts;
}

void JoinAlert(Turn& turn, const Alerted& alert) {
  State& state = turn.state;
  const Finding finding = FindingOf(state, alert);
  if (!AlreadySaid(state, finding)) Open(state).findings.push_back(finding);
  if (state.mode == Mode::kStopping) ResolveAnew(turn);
}

// ---- carrying out ----

std::string ProbeName(Rung rung) { return rung == Rung::kDiagnose ? "stop-time diagnosis" : "replay"; }

void BeginProbe(Turn& turn) {
  State& state = turn.state;
  state.mode = Mode::kProbing;
  const int64_t id = Open(state).id;
  state.ledger.Enter(Phase::kDecide, turn.at, id);
  state.settled = turn.at;
  const int nodes = CountNodes(state);
  ActOnPlan(turn, ActionKind::kNote,
            fmt::format("{} of {} node{}", ProbeName(state.fault.plan.rung), nodes, nodes == 1 ? "" : "s"));
  Ask(turn);
  AnnounceOpen(turn);
}

// Why a node that was to go stays after all.
std::string WhyItStays(const Decision& decision, const std::string& name) {
  const std::string about = fmt::format("node {}: ", name);
  for (const Refusal& refusal : decision.refused)
    if (refusal.why.starts_with(about)) return refusal.why.substr(about.size());
  return "nobody names it any more";
}

// The name of a node that left on account of this incident and whose checkpoints that one keeps, or which keeps its:
// if both leave before the job has begun anew, what one of them had is nowhere any more.
std::string PairThatLeft(const State& state, int node) {
  const std::vector<int> keepers = KeepersOf(state.spec);
  for (size_t other = 0; other < state.spec.nodes.size(); ++other) {
    const bool is_pair = keepers[other] == node || keepers[static_cast<size_t>(node)] == static_cast<int>(other);
    if (!is_pair) continue;
    for (const Eviction& eviction : state.evictions) {
      const bool took_over = !eviction.standby.empty() && eviction.standby == state.spec.nodes[other].name;
      const bool is_vacant = state.vacated.contains(static_cast<int>(other));
      if (eviction.incident == state.incidents[*state.open].id && (took_over || is_vacant)) return eviction.node.name;
    }
  }
  return "";
}

// What was possible when the plan was made may not be so now: others were lost meanwhile, an alert was cleared.
void EvictPlanned(Turn& turn) {
  State& state = turn.state;
  if (state.fault.plan.evict.empty()) return;
  const Decision now = Decide(state.spec.policy, FactsOfOpen(state, state.fault.plan.symptom));
  for (const Evictee& evictee : std::exchange(state.fault.plan.evict, {})) {
    const NodeSpec& occupant = state.spec.nodes[static_cast<size_t>(evictee.node)];
    if (occupant.token != evictee.token) continue;  // it was lost meanwhile
    const bool may = std::find(now.nodes.begin(), now.nodes.end(), evictee.node) != now.nodes.end();
    const std::string pair = PairThatLeft(state, evictee.node);
    if (may && !pair.empty()) {
      Act(turn, ActionKind::kNote,
          fmt::format(
              "node {} keeps its place until the job trains again: it holds what node {} had, or that held what "
              "it has",
              occupant.name, pair));
    } else if (may) {
      PutOut(turn, evictee.node, evictee.why, evictee.role);
    } else {
      Act(turn, ActionKind::kNote,
          fmt::format("node {} keeps its place: {}", occupant.name, WhyItStays(now, occupant.name)));
    }
  }
}

std::string ProbedText(const State& state, const Probed& event) {
  std::string text = ProbeName(event.rung) + ": ";
  std::string named;
  for (const Finding& finding : event.findings) named += (named.empty() ? "" : "; ") + incident::Headline(finding);
  text += named.empty() ? "nothing found" : named;
  if (!event.note.empty()) text += "; " + event.note;
  if (event.unanswered.empty()) return text;
  text += fmt::format(" ({} of {} nodes did not answer in time:", event.unanswered.size(), CountNodes(state));
  for (const std::string& name : event.unanswered) text += " " + name;
  return text + ")";
}

void TakeCulprits(State& state, const Probed& event) {
  const Role role = event.rung == Rung::kDiagnose ? Role::kDiagnosis : Role::kReplay;
  for (const Finding& finding : event.findings) {
    Open(state).findings.push_back(finding);
    Open(state).findings.back().since = state.now;  // a probe tells who, not since when
    if (!finding.certain) continue;
    const std::string why = finding.evidence.empty() ? incident::Headline(finding) : finding.evidence.front();
    for (const Suspect& suspect : finding.suspects)
      if (const std::optional<int> node = NodeOf(state, suspect))
        state.fault.named.push_back({*node, NameOf(state, *node), why, role});
  }
}

// Its place was given to another one when it was lost, or to nobody: what is left to do is to begin anew.
bool IsPutOut(Symptom symptom, const FaultFacts& facts) {
  return symptom == Symptom::kNodeLost && facts.culprits.empty();
}

}  // namespace

Symptom SymptomOf(const State& state) {
  switch (incident::Lead(state.incidents[*state.open]).syndrome) {
    case Syndrome::kMachineFault:
      return Symptom::kMachine;
    case Syndrome::kNetworkFault:
      return Symptom::kNetwork;
    case Syndrome::kNodeLost:
      return Symptom::kNodeLost;
    case Syndrome::kNan:
      return Symptom::kNan;
    case Syndrome::kUpdate:
    case Syndrome::kJobSlow:  // of which only a version on trial is accused
      return Symptom::kUpdate;
    case Syndrome::kWatcherLost:
      return Symptom::kOurs;
    case Syndrome::kCrash:
    case Syndrome::kExit:
      if (state.fault.free_retry) return Symptom::kOurs;
      return state.fault.traceable ? Symptom::kProgram : Symptom::kCrash;
    default:
      return Symptom::kHang;
  }
}

Decision AnswerToAlerts(const State& state, Symptom symptom) {
  return Decide(state.spec.policy, FactsOf(state, symptom));
}

void ActOnPlan(Turn& turn, ActionKind kind, std::string text, bool done) {
  const Plan& plan = turn.state.fault.plan;
  Open(turn.state).actions.push_back({kind, std::move(text), done, turn.at, RungName(plan.rung), plan.reason});
}

void Resolve(Turn& turn) {
  State& state = turn.state;
  const Symptom symptom = SymptomOf(state);
  const FaultFacts facts = FactsOfOpen(state, symptom);
  const Decision decision = IsPutOut(symptom, facts) ? Decision{.rung = Rung::kReattempt,
                                                                .reason = "the node that was lost is out of the job"}
                                                     : Decide(state.spec.policy, facts);
  Plan& plan = state.fault.plan;
  plan = {symptom, decision.rung, decision.reason, {}, state.fault.free_retry || facts.on_trial};
  // The place of a node that is lost is given away at once: of its ranks none has to end.
  if (symptom != Symptom::kNodeLost) plan.evict = EvicteesOf(state, decision, facts.culprits);
  Keep(turn, symptom, decision);
}

void ResolveAnew(Turn& turn) {
  const Plan before = turn.state.fault.plan;
  Resolve(turn);
  const Plan& plan = turn.state.fault.plan;
  if (plan.rung == Rung::kGiveUp) return BeginFinish(turn, kExitFailed, plan.reason, {});
  if (before.evict.empty() && !plan.evict.empty())
    turn.commands.push_back(WaitForStop{turn.state.epoch, turn.state.spec.policy.stop_within});
}

void CarryOut(Turn& turn) {
  State& state = turn.state;
  const Plan& plan = state.fault.plan;
  state.ladder.push_back({plan.symptom, plan.rung, Open(state).id, ChainOf(state, plan.symptom).id, {}});
  if (IsProbe(plan.rung)) return BeginProbe(turn);
  EvictPlanned(turn);
  if (plan.rung == Rung::kRollback) RollBack(turn);
  BeginChoosing(turn);
}

void Reconsider(Turn& turn) {
  State& state = turn.state;
  if (!Acts(state) || state.paused) return;
  for (const Alerts::Complaint& complaint : state.alerts.Broken())
    if (AnswerAlert(turn, complaint.newest, false)) return;
  for (const Alerts::Complaint& complaint : state.alerts.Unsteady(state.spec.policy, state.now))
    if (complaint.stands && AnswerAlert(turn, complaint.newest, false)) return;
  ReconsiderUpdate(turn);
}

void On(Turn& turn, const Alerted& event) {
  State& state = turn.state;
  if (!event.token.empty()) return OfStandby(turn, event);
  const bool is_node = event.node >= 0 && event.node < CountNodes(state);
  if (!is_node || !state.alerts.Take(event, turn.at, state.spec.policy.network_window)) return Ignore(turn);
  if (!NeedsAnswer(event) || state.paused) return;
  if (Acts(state)) {
    AnswerAlert(turn, event, true);
  } else if (state.open && state.mode != Mode::kFinishing) {
    JoinAlert(turn, event);
  }
}

void On(Turn& turn, const Probed& event) {
  State& state = turn.state;
  if (state.mode != Mode::kProbing || event.rung != state.fault.plan.rung) return Ignore(turn);
  ActOnPlan(turn, ActionKind::kNote, ProbedText(state, event));
  TakeCulprits(state, event);
  state.ledger.Enter(Phase::kRestart, turn.at, Open(state).id);
  state.settled = turn.at;
  Resolve(turn);
  if (state.fault.plan.rung == Rung::kGiveUp) return BeginFinish(turn, kExitFailed, state.fault.plan.reason, {});
  CarryOut(turn);
}

// To kill them once more would not help.
void FinishWithoutStuck(Turn& turn, const std::vector<int>& nodes) {
  State& state = turn.state;
  std::string names;
  for (const int node : nodes) names += fmt::format("{}{}", names.empty() ? "" : ", ", NameOf(state, node));
  state.verdict += fmt::format(
      "; but processes of node {} have not ended {:g} s after they were killed: they hang in "
      "its kernel, and may hold its devices",
      names, state.spec.policy.stuck_within.value);
  FinishNow(turn);
}

void On(Turn& turn, const StopOverdue& event) {
  State& state = turn.state;
  if (state.mode == Mode::kFinishing && !event.unstopped.empty()) return FinishWithoutStuck(turn, event.unstopped);
  if (state.mode == Mode::kStopping && !event.nodes.empty()) return LoseStuckNodes(turn, event.nodes);
  if (state.mode != Mode::kStopping || state.fault.plan.evict.empty()) return Ignore(turn);
  // Who else has not ended may be gone, and with it what the nodes that are to leave keep the only copy of.
  const std::vector<Evictee>& planned = state.fault.plan.evict;
  const bool others = std::any_of(event.unstopped.begin(), event.unstopped.end(), [&](int node) {
    return std::none_of(planned.begin(), planned.end(), [&](const Evictee& evictee) { return evictee.node == node; });
  });
  if (others) return turn.commands.push_back(WaitForStop{state.epoch, state.spec.policy.stop_within});
  Act(turn, ActionKind::kNote,
      fmt::format("not all ranks have ended within {:g} s: whoever has the place from now on does not wait for them",
                  state.spec.policy.stop_within.value));
  EvictPlanned(turn);
}

}  // namespace lockstep::control
