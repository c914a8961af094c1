#include "lockstep/plan/schedule.h"

#include <algorithm>

namespace lockstep::plan {

const char* ScheduleName(Schedule schedule) {
  constexpr const char* kNames[] = {"1f1b", "zb-h1", "zb-2p", "dualpipe"};
  return kNames[static_cast<size_t>(schedule)];
}

absl::StatusOr<Schedule> ParseSchedule(std::string_view name) {
  for (const Schedule one : {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p, Schedule::kDualPipe})
    if (name == ScheduleName(one)) return one;
  return InvalidArgument("schedule is \"{}\"; expected 1f1b, zb-h1, zb-2p or dualpipe", name);
}

namespace {

// (p/2-1)(F+B+W + B+W - 3W) where all stages are alike, for a forward and a backward pass run together. Ranks at the
// ends that take `excess` longer, on average of their two stages, wait for less: of what they wait for in the beginning
// (2p - 10/3) excess is done meanwhile, down to (p/2-1)(B-W). The graph's own law (step_graph_test.cc), not published.
double DualPipeBubble(double stages, const Passes& others, const Passes& slowest) {
  const double each = 1 / (stages - 1), turns = stages / 2 - 1;
  const double excess = std::max(0.0, slowest.total() - others.total() * each);
  const double alike = turns * (others.forward + 2 * others.input - others.weight) * each;
  return std::max({0.0, turns * (others.input - others.weight) * each, alike - (2 * stages - 10.0 / 3) * excess});
}

}  // namespace

// Of p stages that are alike: 1F1B (p-1)(F+B+W)/v; ZB-H1 (p-1)(F+B-W); ZB-2p (p-1)(F+B-2W).
double BubbleSeconds(Schedule schedule, int stages, int chunks, const Passes& others, const Passes& slowest) {
  if (stages == 1) return 0;
  switch (schedule) {
    case Schedule::kZeroBubbleH1:
      return std::max(0.0, others.forward + others.input - (stages - 1) * slowest.weight);
    case Schedule::kZeroBubble2p:
      return std::max(0.0, others.forward + others.input - 2 * (stages - 1) * slowest.weight);
    case Schedule::kDualPipe:
      return DualPipeBubble(stages, others, slowest);
    default:
      return others.total() / chunks;
  }
}

double InFlight(const Variant& v, double stages, double microbatches, double stage) {
  switch (v.schedule) {
    case Schedule::kZeroBubbleH1:
      return std::min(microbatches, stages);
    case Schedule::kZeroBubble2p:
      return std::min(microbatches, 2 * stages - 1);
    case Schedule::kDualPipe:
      return std::min(microbatches, stages + 1);
    default:
      if (v.chunks > 1)  // warm-up of 2(p - 1 - stage) + (v - 1)p chunks, and the one that follows
        return std::min(microbatches, (2 * (stages - 1 - stage) + (v.chunks - 1) * stages + 1) / v.chunks);
      return std::min(microbatches, stages - stage);
  }
}

bool CanRun(const Variant& v, int stages, int microbatches) {
  switch (v.schedule) {
    case Schedule::kZeroBubbleH1:
      return stages > 1 && v.chunks == 1 && microbatches >= stages;
    case Schedule::kZeroBubble2p:
      return stages > 1 && v.chunks == 1 && microbatches >= 2 * stages;
    case Schedule::kDualPipe:
      return stages > 1 && v.chunks == 1 && stages % 2 == 0 && microbatches % 2 == 0 && microbatches >= 2 * stages;
    default:
      return v.chunks == 1 || (stages > 1 && microbatches % stages == 0);
  }
}

absl::Status CheckSchedule(const Workload& w) {
  const int batches = w.Microbatches();
  const bool differ = w.schedule == Schedule::kDualPipe && !w.AllStagesAlike();
  if (CanRun(VariantOf(w), w.pp, batches) && !differ) return absl::OkStatus();
  if (w.schedule == Schedule::k1F1B)
    return InvalidArgument("vp {} needs a pipeline, and microbatches that are a multiple of pp {}; found {}", w.chunks,
                           w.pp, batches);
  if (w.pp == 1 || w.chunks > 1)
    return InvalidArgument("schedule {} needs pp above 1 and vp 1, found pp {} and vp {}", ScheduleName(w.schedule),
                           w.pp, w.chunks);
  if (differ || (w.schedule == Schedule::kDualPipe && w.pp % 2 != 0))
    return InvalidArgument("schedule dualpipe needs an even number of stages that are alike, found pp {}", w.pp);
  const bool needs_even = w.schedule == Schedule::kDualPipe;
  return InvalidArgument("schedule {} needs at least {} microbatches{}, found {}: choose a smaller mbs, pp or dp",
                         ScheduleName(w.schedule), (w.schedule == Schedule::kZeroBubbleH1 ? 1 : 2) * w.pp,
                         needs_even ? ", an even number" : "", batches);
}

}  // namespace lockstep::plan
