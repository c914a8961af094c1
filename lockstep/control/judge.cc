#include "lockstep/control/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/comm_slow.h"
#include "lockstep/incident/rank_ranges.h"
#include "lockstep/trace/trails.h"

namespace lockstep::control {
namespace {

constexpr Seconds kProgressPeriod{5.0};  // how much of the ledger a killed coordinator may have to guess
constexpr Seconds kCommunicationPeriod{5.0};
constexpr Seconds kCommunicationForgotten{120};  // what comes back after so long is told again
// Far beyond any message of a healthy job, and far below the limits of the libraries, at which the job would end.
constexpr Seconds kStuck{30};

bool IsHalted(const detect::RankSample& sample) { return sample.state == detect::ProcState::kStopped || sample.frozen; }

// Its exit has been told; the samples speak of those that are left.
bool Failed(const detect::RankSample& sample) { return sample.state == detect::ProcState::kGone && !sample.finished; }

std::string Fingerprint(const incident::Finding& finding) {
  std::string text = incident::SyndromeName(finding.syndrome);
  for (const auto& suspect : finding.suspects) text += "/" + suspect.name;
  return text + (finding.certain ? "!" : "?");
}

// Each op that has not ended and what it has heard; empty where one does not tell.
std::string UnderWay(const trace::CommLog& log) {
  std::string text;
  for (const trace::CommOp& op : log.ops) {
    if (op.state == trace::OpState::kCompleted) continue;
    if (op.messages < 0) return "";
    text += fmt::format("{}/{}/{}/{} ", op.rank, op.communicator, op.sequence, op.messages);
  }
  return text;
}

}  // namespace

void Judge::Begin(EpochId epoch) {
  if (epoch <= epoch_) return;
  epoch_ = epoch;
  newest_.clear();
  suspicions_told_.clear();
  bad_losses_.clear();
  losses_told_ = false;
  communication_told_.clear();
  under_way_.clear();
  stuck_ = false;
  joined_since_ = {};
  trails_.clear();
  motion_ = {};
  stacks_.Clear();
  wants_stacks_ = false;
  caught_up_told_ = trial_told_ = -1;
  pace_.Begin();
  detector_.Reset();
}

void Judge::Add(const Samples& samples) {
  if (samples.epoch != epoch_) return;
  for (const detect::RankSample& sample : samples.ranks) {
    detect::RankSample& newest = newest_[sample.rank];
    if (newest.at <= sample.at) newest = sample;
    if (!Failed(sample)) detector_.Add(sample);
  }
  for (const detect::StackSample& sample : samples.stacks) detector_.Add(sample);
  for (const BadLoss& loss : samples.losses) {
    bad_losses_.erase(loss.rank);
    if (loss.from >= 0) bad_losses_.emplace(loss.rank, loss);
  }
}

void Judge::Add(CommunicationSeen seen) {
  if (seen.epoch != epoch_) return;
  for (trace::TrailSnapshot& trail : seen.trails) trails_[trail.owner()] = std::move(trail);
  trails_new_ = true;
}

void Judge::Add(int node, StacksSeen seen) {
  if (seen.epoch == epoch_) stacks_.Add(node, std::move(seen));
}

void Judge::Forget(const std::vector<RankId>& ranks) {
  for (const RankId rank : ranks) {
    detector_.Forget(rank);
    newest_.erase(rank);
    bad_losses_.erase(rank);
    const auto of = static_cast<uint32_t>(rank.value());
    trails_.erase(trails_.lower_bound({of, ""}), trails_.lower_bound({of + 1, ""}));
  }
}

// Whether those who have not joined may still be on their way: all have in an epoch before, or the first has just now.
bool Judge::NoteJoined(const std::vector<int>& absent, int ranks, Nanos now) {
  const bool some = absent.size() < static_cast<size_t>(ranks);
  some_joined_ = some_joined_ || some;
  all_joined_ = all_joined_ || absent.empty();
  if (some && joined_since_.value == 0) joined_since_ = now;
  return all_joined_ || (some_joined_ && (!some || now - joined_since_ < ToNanos(kUntilUnseen)));
}

// Not before every node has said whether its ranks have joined.
void Judge::TellUnseen(const State& state, Nanos now, std::vector<EventBody>& events) {
  if (all_joined_ || state.in_loop || state.epoch != epoch_) return;
  if (newest_.size() < static_cast<size_t>(state.spec.ranks)) return;
  std::vector<int> absent;
  for (const auto& [rank, sample] : newest_)
    if (!sample.joined) absent.push_back(rank.value());
  if (NoteJoined(absent, state.spec.ranks, now) || !TrainsUnseen(state, now)) return;
  events.push_back(LoopBegan{epoch_, now, state.restore, true});
  if (some_joined_ && !std::exchange(absent_told_, true))
    absent_ = fmt::format("{} {} not joined: Checkpoint must be made on all ranks; until then no step counts",
                          incident::RanksAsRanges(absent), absent.size() == 1 ? "has" : "have");
}

void Judge::TellProgress(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events) {
  if (progress.step_end.value == 0) {
    if (state.unseen && !state.paused && IsTrialOver(state, state.progress, {}, now))
      events.push_back(ProgressSeen{epoch_, state.progress});
    return;
  }
  const bool is_back = state.open && progress.step >= state.fault.close_at_step;
  const bool is_finite = state.bad_loss && LossesAreFinite(state.spec.ranks);
  if ((is_back || is_finite) && caught_up_told_ != progress.step) {
    caught_up_told_ = progress.step;
    events.push_back(CaughtUp{epoch_, progress, is_finite});
  }
  pace_.Add(progress);
  const bool judge = progress.step > trial_told_ && IsTrialOver(state, progress, pace_.step_time(), now);
  if (judge) trial_told_ = progress.step;
  if (judge || now - progress_told_ >= ToNanos(kProgressPeriod)) {
    progress_told_ = now;
    events.push_back(ProgressSeen{epoch_, progress, pace_.step_time()});
  }
}

// A job of which every process is stopped was paused by somebody: Ctrl-Z, a snapshot, a node in maintenance.
void Judge::TellPause(const State& state, std::vector<EventBody>& events) const {
  if (newest_.size() < static_cast<size_t>(state.spec.ranks)) return;
  const auto& ranks = newest_;
  const bool all = std::all_of(ranks.begin(), ranks.end(), [](const auto& entry) {
    return entry.second.finished || Failed(entry.second) || IsHalted(entry.second);
  });
  const bool any = std::any_of(ranks.begin(), ranks.end(), [](const auto& entry) { return IsHalted(entry.second); });
  if (all && any && !state.paused) events.push_back(JobPaused{});
  if (!any && state.paused) events.push_back(JobContinued{});
}

// A loop at one spot, after a restart that brought no step: it may have been at work there, and time alone tells.
bool Judge::MayBeWork(const State& state, const incident::Finding& finding, Nanos now) const {
  return finding.syndrome == incident::Syndrome::kSpinning && state.restarts > 0 &&
         state.frontier <= state.frontier_at_restart && now - finding.since < ToNanos(hang_limit_);
}

void Judge::TellSuspicions(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events) {
  const detect::Verdict verdict = detector_.At(now, state.unseen, motion_.Wait(now));
  wants_stacks_ = verdict.wants_stacks;
  for (incident::Finding finding : verdict.findings) {
    finding.certain = finding.certain && !MayBeWork(state, finding, now);
    Suspicion& told =
        suspicions_told_.try_emplace({finding.syndrome, finding.certain}, Suspicion{now, now, {}}).first->second;
    // All that are alike are told in one look.
    const bool is_due = now == told.newest || now - told.newest >= told.newest - told.first;
    if (!is_due || !told.as.insert(Fingerprint(finding)).second) continue;
    told.newest = now;
    events.push_back(Suspected{epoch_, finding, progress});
  }
  if (!verdict.findings.empty()) return;
  suspicions_told_.clear();  // should it come back, it is told again
  TellRecovered(state, events);
}

// No step closes the incident of a job that tells none, if it was only watched. By what is seen now: a coordinator that
// took over need not have told the suspicion itself.
void Judge::TellRecovered(const State& state, std::vector<EventBody>& events) const {
  if (!state.unseen || !state.open || state.mode != Mode::kRunning || state.paused || stuck_) return;
  if (newest_.size() < static_cast<size_t>(state.spec.ranks)) return;
  const bool failed = std::any_of(state.exits.begin(), state.exits.end(), [](const auto& exit) {
    return exit.second.status.code != 0 || exit.second.status.signal != 0;
  });
  const bool halted = std::any_of(newest_.begin(), newest_.end(),
                                  [](const auto& entry) { return IsHalted(entry.second) || entry.second.traced; });
  if (!failed && !halted) events.push_back(CaughtUp{epoch_, state.progress});
}

// A coordinator that took over hears of each rank first.
bool Judge::LossesAreFinite(int ranks) const {
  return bad_losses_.empty() && newest_.size() >= static_cast<size_t>(ranks);
}

// What one rank computes wrongly all have a step later: it is nobody's fault as far as this can tell.
void Judge::TellLosses(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events) {
  if (bad_losses_.empty()) losses_told_ = false;  // should it come back, it is told again
  std::optional<CheckpointId> from;
  int64_t lasts = 0;
  std::string first;
  for (const auto& [rank, bad] : bad_losses_) {
    lasts = std::max(lasts, bad.step - bad.seen_since + 1);
    if (from && CheckpointId{bad.epoch, bad.from} >= *from) continue;
    from = {bad.epoch, bad.from};
    first =
        fmt::format("the loss of rank {} was finite up to step {}{}, and at no look from step {} on", rank.value(),
                    bad.from, bad.epoch < epoch_ ? fmt::format(" of epoch {}", bad.epoch.value()) : "", bad.seen_since);
  }
  if (bad_losses_.empty() || lasts < state.spec.policy.nan_steps || state.bad_loss) return;
  if (std::exchange(losses_told_, true)) return;
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kNan;
  finding.evidence = {first, fmt::format("{} of {} ranks have such a loss", bad_losses_.size(), state.spec.ranks)};
  finding.certain = true;
  finding.since = now;
  events.push_back(Suspected{epoch_, std::move(finding), progress, from->step, from->epoch});
}

// Nothing was heard since the look before. All are in what they wait in: a message is lost, a way is dead. Who is
// outside of what the others wait in may well be at work: that is told by processes and stacks, and by communication
// where no step tells them when to look.
std::vector<incident::Finding> Judge::FindStuck(const trace::CommLog& log, bool unseen) {
  detect::CommThresholds thresholds;
  thresholds.hang = kStuck;
  const std::string before = std::exchange(under_way_, log.moving || log.unseen ? "" : UnderWay(log));
  if (under_way_.empty() || under_way_ != before) return {};
  detect::CommDiagnosis diagnosis = detect::FindHangs(log, thresholds);
  if (!diagnosis.no_report.empty()) return {};
  std::erase_if(diagnosis.findings, [&](const incident::Finding& finding) {
    return !unseen && finding.syndrome != incident::Syndrome::kCommunicationHang;
  });
  for (incident::Finding& finding : diagnosis.findings) finding.certain = false;
  return std::move(diagnosis.findings);
}

trace::CommLog Judge::Log() const {
  std::vector<trace::TrailSnapshot> trails;
  trails.reserve(trails_.size());
  for (const auto& [owner, trail] : trails_) trails.push_back(trail);
  return trace::JoinTrails(std::move(trails));
}

void Judge::TellCommunication(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events) {
  if (now < communication_due_ || !std::exchange(trails_new_, false)) return;
  communication_due_ = now + ToNanos(kCommunicationPeriod);
  detect::CommThresholds thresholds;
  thresholds.least = kCommunicationPeriod;  // a job that has just begun is still finding its pace
  const trace::CommLog log = Log();
  motion_.Look(trails_, log, now);
  std::vector<incident::Finding> findings = FindStuck(log, state.unseen);
  stuck_ = !findings.empty();
  if (findings.empty()) findings = detect::JudgeSlowness(log, thresholds).findings;
  for (incident::Finding& finding : findings) {
    const bool anew = !communication_told_.contains(Fingerprint(finding));
    communication_told_[Fingerprint(finding)] = now;
    finding.since = now;  // on our clock, unlike what the trails say
    if (anew) events.push_back(Suspected{epoch_, std::move(finding), progress});
  }
  std::erase_if(communication_told_,
                [&](const auto& told) { return now - told.second > ToNanos(kCommunicationForgotten); });
}

std::vector<EventBody> Judge::AtStacks(const JobSpec& spec, const Progress& progress, Nanos now) {
  std::optional<incident::Finding> finding = stacks_.Find(spec, Log());
  stacks_.Clear();
  if (!finding) return {};
  finding->since = now;
  return {Suspected{epoch_, *std::move(finding), progress}};
}

std::vector<EventBody> Judge::At(const State& state, const Progress& progress, Nanos now) {
  if (newest_.empty()) return {};
  std::vector<EventBody> events;
  TellUnseen(state, now, events);
  TellProgress(state, progress, now, events);
  TellPause(state, events);
  TellLosses(state, progress, now, events);
  TellCommunication(state, progress, now, events);
  TellSuspicions(state, progress, now, events);
  return events;
}

}  // namespace lockstep::control
