#include "lockstep/control/judge.h"

#include <algorithm>
#include <utility>

#include "lockstep/detect/comm_slow.h"
#include "lockstep/trace/trails.h"

namespace lockstep::control {
namespace {

constexpr Seconds kProgressPeriod{5.0};  // how much of the ledger a killed coordinator may have to guess
constexpr Seconds kSlownessPeriod{5.0};
constexpr Seconds kSlownessForgotten{120};  // what comes back after so long is told again

bool Held(const detect::RankSample& sample) { return sample.state == detect::ProcState::kStopped || sample.frozen; }

// Its exit has been told; the samples speak of those that are left.
bool Failed(const detect::RankSample& sample) { return sample.state == detect::ProcState::kGone && !sample.finished; }

std::string Fingerprint(const incident::Finding& finding) {
  std::string text = incident::SyndromeName(finding.syndrome);
  for (const auto& suspect : finding.suspects) text += "/" + suspect.name;
  return text + (finding.certain ? "!" : "?");
}

}  // namespace

void Judge::Begin(EpochId epoch) {
  if (epoch <= epoch_) return;
  epoch_ = epoch;
  newest_.clear();
  suspicions_told_.clear();
  slowness_told_.clear();
  trails_.clear();
  wants_stacks_ = false;
  caught_up_told_ = -1;
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
}

void Judge::Add(CommunicationSeen seen) {
  if (seen.epoch != epoch_) return;
  for (trace::TrailSnapshot& trail : seen.trails) trails_[trail.owner()] = std::move(trail);
  trails_new_ = true;
}

void Judge::Forget(const std::vector<RankId>& ranks) {
  for (const RankId rank : ranks) {
    detector_.Forget(rank);
    newest_.erase(rank);
    std::erase_if(trails_, [&](const auto& trail) { return trail.first.first == static_cast<uint32_t>(rank.value()); });
  }
}

void Judge::TellProgress(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events) {
  if (progress.step_end.value == 0) return;
  if (state.open && progress.step >= state.fault.close_at_step && caught_up_told_ != progress.step) {
    caught_up_told_ = progress.step;
    events.push_back(CaughtUp{epoch_, progress});
  }
  if (now - progress_told_ >= ToNanos(kProgressPeriod)) {
    progress_told_ = now;
    events.push_back(ProgressSeen{epoch_, progress});
  }
}

// A job of which every process is stopped was paused by somebody: Ctrl-Z, a snapshot, a node in maintenance.
void Judge::TellPause(const State& state, std::vector<EventBody>& events) const {
  if (newest_.size() < static_cast<size_t>(state.spec.ranks)) return;
  const auto& ranks = newest_;
  const bool all = std::all_of(ranks.begin(), ranks.end(), [](const auto& entry) {
    return entry.second.finished || Failed(entry.second) || Held(entry.second);
  });
  const bool any = std::any_of(ranks.begin(), ranks.end(), [](const auto& entry) { return Held(entry.second); });
  if (all && any && !state.paused) events.push_back(JobPaused{});
  if (!any && state.paused) events.push_back(JobContinued{});
}

void Judge::TellSuspicions(const Progress& progress, Nanos now, std::vector<EventBody>& events) {
  const detect::Verdict verdict = detector_.At(now);
  wants_stacks_ = verdict.wants_stacks;
  for (const incident::Finding& finding : verdict.findings) {
    if (suspicions_told_.insert(Fingerprint(finding)).second) events.push_back(Suspected{epoch_, finding, progress});
  }
  if (verdict.findings.empty()) suspicions_told_.clear();  // should it come back, it is told again
}

void Judge::TellSlowness(const Progress& progress, Nanos now, std::vector<EventBody>& events) {
  if (now < slowness_due_ || !std::exchange(trails_new_, false)) return;
  slowness_due_ = now + ToNanos(kSlownessPeriod);
  std::vector<trace::TrailSnapshot> trails;
  trails.reserve(trails_.size());
  for (const auto& [owner, trail] : trails_) trails.push_back(trail);
  detect::CommThresholds thresholds;
  thresholds.least = kSlownessPeriod;  // a job that has just begun is still finding its pace
  for (incident::Finding& finding : detect::FindSlowness(trace::JoinTrails(std::move(trails)), thresholds)) {
    const bool anew = !slowness_told_.contains(Fingerprint(finding));
    slowness_told_[Fingerprint(finding)] = now;
    finding.since = now;  // on our clock, unlike what the trails say
    if (anew) events.push_back(Suspected{epoch_, std::move(finding), progress});
  }
  std::erase_if(slowness_told_, [&](const auto& told) { return now - told.second > ToNanos(kSlownessForgotten); });
}

std::vector<EventBody> Judge::At(const State& state, const Progress& progress, Nanos now) {
  if (newest_.empty()) return {};
  std::vector<EventBody> events;
  TellProgress(state, progress, now, events);
  TellPause(state, events);
  TellSuspicions(progress, now, events);
  TellSlowness(progress, now, events);
  return events;
}

}  // namespace lockstep::control
