#include "lockstep/detect/conduct.h"

#include <algorithm>

namespace lockstep::detect {
namespace {

constexpr double kStepsOfAStall = 3;
// Of max(3 steps, least_stall), which is the promise: the rest is for the sampling period, a busy machine and the
// stacks.
constexpr double kHaltShare = 0.85;
constexpr int kFewestStill = 3, kFewestSpinning = 5;
constexpr Seconds kLately{60};

// Its stack says so; where it can't be read, it has done nothing at all for as long as a blocked rank must.
bool Waits(const Situation& job, const RankView& view) {
  if (Place(view) != InCollective::kUnknown) return Place(view) == InCollective::kYes;
  return Watched(job, view.history->QuietSince(job.now, true, Nanos{}).since) >= job.limits.blocked_limit;
}

// Evidence counts from when the rank was free to move, showed no work, and its stacks began to say the same.
Nanos EvidenceSince(const Situation& job, const RankView& view, const StackRun& run, bool idle) {
  const Nanos since = std::max({run.since, job.advance, view.history->FreeSince(job.now)});
  return std::max(since, view.history->QuietSince(job.now, idle, since).since);
}

}  // namespace

Seconds Ago(const Situation& job, Nanos since) { return ToSeconds(job.now - since); }
Seconds Watched(const Situation& job, Nanos since) { return job.awake.Since(since); }

Seconds HaltLimit(const HangLimits& limits, Seconds usual) { return std::max(limits.least_stall, usual) * kHaltShare; }

Seconds HaltLimit(const Situation& job) {
  if (job.step_time) return HaltLimit(job.limits, job.step_time->median * kStepsOfAStall);
  if (!job.usual_quiet) return job.limits.first_step_limit;
  return std::min(job.limits.first_step_limit, HaltLimit(job.limits, *job.usual_quiet));
}

Seconds NamingLimit(const Situation& job) {
  if (!job.step_time || !job.stepped) return job.limits.first_step_limit;
  return std::max(job.limits.least_stall, job.step_time->slow * kStepsOfAStall);
}

InCollective Place(const RankView& view) {
  return view.stack == nullptr ? InCollective::kUnknown : view.stack->in_collective;
}

Ranks Others(const Situation& job, const Ranks& ranks) {
  std::vector<bool> is_one(job.ranks.size());
  for (const RankView* view : ranks) is_one[static_cast<size_t>(view - job.ranks.data())] = true;
  Ranks others;
  for (size_t i = 0; i < job.ranks.size(); ++i)
    if (!is_one[i]) others.push_back(&job.ranks[i]);
  return others;
}

bool OthersWait(const Situation& job, const Ranks& suspects) {
  return suspects.size() < job.ranks.size() &&
         std::ranges::all_of(Others(job, suspects), [&](const RankView* view) { return Waits(job, *view); });
}

Nanos StillSince(const Situation& job, const RankView& view) {
  if (view.stack == nullptr || view.stack->signature == 0) return job.now;
  const StackRun run = view.history->Still(job.now);
  return run.samples < kFewestStill ? job.now : EvidenceSince(job, view, run, true);
}

bool Blocked(const Situation& job, const RankView& view) {
  return Place(view) == InCollective::kNo && view.stack->waits_forever &&
         Watched(job, StillSince(job, view)) >= job.limits.blocked_limit;
}

Nanos SpinningSince(const Situation& job, const RankView& view) {
  const StackRun run = view.history->OneSpot(job.now);
  return run.samples < kFewestSpinning ? job.now : EvidenceSince(job, view, run, false);
}

bool Spinning(const Situation& job, const RankView& view) {
  if (view.stack == nullptr || Place(view) == InCollective::kYes) return false;
  const Nanos since = SpinningSince(job, view);
  const double cores = std::min(view.history->Load(since, job.now), 1.0);
  return Watched(job, since) * cores >= job.limits.spin_limit;
}

bool WorksOutside(const Situation& job, const RankView& view) {
  return Place(view) != InCollective::kYes && view.history->Works(job.now, kLately);
}

}  // namespace lockstep::detect
