#include "lockstep/detect/hang.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/check.h"
#include "lockstep/detect/awake.h"
#include "lockstep/detect/history.h"
#include "lockstep/detect/rules.h"
#include "lockstep/detect/step_time.h"

namespace lockstep::detect {
namespace {

constexpr Nanos kEver{INT64_MAX};

// Twice what the rules look back for, and never less than a minute; who spins on a crowded machine gets a part of a
// core.
Seconds Window(const HangLimits& limits) {
  return std::max({Seconds{60}, limits.spin_limit * 4, limits.blocked_limit * 2});
}

// The longest wait of any rule is three times the hang limit.
size_t Slots(const HangLimits& limits) { return static_cast<size_t>(limits.hang_limit.value * 4) + 60; }

}  // namespace

struct HangDetector::State {
  State(const HangLimits& given, int world_size)
      : limits(given), awake(Slots(given)), ranks(static_cast<size_t>(world_size), RankHistory(Window(given))) {}

  // None of a rank that is not in this world: a node may tell of those that it had before the world became smaller.
  RankHistory* Rank(RankId rank) {
    const bool is_there = rank.value() >= 0 && rank.value() < static_cast<int>(ranks.size());
    return is_there ? &ranks[static_cast<size_t>(rank.value())] : nullptr;
  }
  void See(const RankHistory& history, Situation& job) const;
  bool Trains() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const RankHistory& history) { return history.LoopSince(kEver); });
  }

  HangLimits limits;
  AwakeClock awake;
  StepTimes steps;
  std::vector<RankHistory> ranks;
  std::optional<Nanos> first_sample;  // of this epoch
  bool has_trained = false;           // in an earlier epoch
};

HangDetector::HangDetector(const HangLimits& limits, int world_size)
    : state_(std::make_unique<State>(limits, world_size)) {}
HangDetector::~HangDetector() = default;

void HangDetector::Reset() {
  state_->has_trained |= state_->Trains();
  state_->first_sample.reset();
  state_->awake.Clear();
  state_->steps.Reset();
  for (RankHistory& history : state_->ranks) history.Clear();
}

void HangDetector::Forget(RankId rank) {
  if (RankHistory* history = state_->Rank(rank)) history->Clear();
}

void HangDetector::Add(const RankSample& sample) {
  RankHistory* history = state_->Rank(sample.rank);
  if (history == nullptr) return;
  history->Add(sample);
  state_->first_sample = std::min(state_->first_sample.value_or(sample.at), sample.at);
  state_->awake.Add(sample);
  state_->steps.Add(sample);
}

void HangDetector::Add(const StackSample& sample) {
  if (RankHistory* history = state_->Rank(sample.rank)) history->Add(sample);
}

void HangDetector::State::See(const RankHistory& history, Situation& job) const {
  const RankSample* last = history.Last(job.now);
  if (last == nullptr) return;
  const Nanos loop = history.LoopSince(job.now).value_or(Nanos{0});
  job.advance = std::max({job.advance, last->step_end, loop});
  job.stepped |= last->step_end > loop;
  if (!Unfinished(*last)) return;
  job.in_loop |= last->in_loop;
  job.ranks.push_back({last->rank, &history, last, history.Stack(job.now)});
}

Verdict HangDetector::At(Nanos now, bool unseen, const std::optional<CommWait>& wait) const {
  Situation job{.limits = state_->limits, .awake = state_->awake.Until(now), .now = now};
  for (const RankHistory& history : state_->ranks) state_->See(history, job);
  job.unseen = unseen && !job.in_loop;
  job.waits = job.unseen && wait && Watched(job, wait->since) >= job.limits.first_step_limit;
  if (!job.in_loop && wait && wait->usual_quiet && wait->quiet >= HaltLimit(job.limits, *wait->usual_quiet) * 0.5)
    job.usual_quiet = wait->usual_quiet;
  job.expects_loop = job.in_loop || state_->has_trained || job.waits;
  if (!job.in_loop) job.advance = std::max(job.advance, state_->first_sample.value_or(now));
  if (job.waits || job.usual_quiet) job.advance = std::max(job.advance, job.waits ? wait->since : wait->quiet_since);
  // Stacks from before the newest step are of an earlier stall: who held that up may wait like the others now.
  for (auto& rank : job.ranks)
    if (rank.stack != nullptr && rank.stack->at <= job.advance) rank.stack = nullptr;
  if (job.in_loop && ToSeconds(now - job.advance) >= job.limits.least_stall * 0.5)
    job.step_time = state_->steps.At(now);
  return ApplyHangRules(job);
}

}  // namespace lockstep::detect
