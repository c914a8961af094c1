#include "lockstep/plan/schedule.h"

#include <algorithm>

namespace lockstep::plan {

const char* ScheduleName(Schedule schedule) {
  constexpr const char* kNames[] = {"1f1b", "zb-h1", "zb-2p", "dualpipe"};
  return kNames[static_cast<size_t>(schedule)];
}

absl::StatusOr<Schedule> ParseSchedule(std::string_view name) {
  for (const Schedule one :
       {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p, Schedule::kDualPipe})
    if (name == ScheduleName(one)) return one;
  return InvalidArgument("schedule is \"{}\"; expected 1f1b, zb-h1, zb-2p or dualpipe", name);
}

// Of p stages that are alike: 1F1B (p-1)(F+B+W)/v; ZB-H1 (p-1)(F+B-W); ZB-2p (p-1)(F+B-2W); DualPipe, of which a
// forward and a backward pass run together, (p/2-1)(F+B+W + B+W - 3W).
double BubbleSeconds(Schedule schedule, int stages, int chunks, const Passes& others, double weight) {
  if (stages == 1) return 0;
  switch (schedule) {
    case Schedule::kZeroBubbleH1:
      return std::max(0.0, others.forward + others.input - (stages - 1) * weight);
    case Schedule::kZeroBubble2p:
      return std::max(0.0, others.forward + others.input - 2 * (stages - 1) * weight);
    case Schedule::kDualPipe:
      return std::max(0.0, others.forward + 2 * others.input - others.weight) * (stages / 2.0 - 1) / (stages - 1);
    default:
      return (others.forward + others.input + others.weight) / chunks;
  }
}

double InFlight(const Workload& w, int stage) {
  const double batches = w.Microbatches(), stages = w.pp;
  switch (w.schedule) {
    case Schedule::kZeroBubbleH1:
      return std::min(batches, stages);
    case Schedule::kZeroBubble2p:
      return std::min(batches, 2 * stages - 1);
    case Schedule::kDualPipe:
      return std::min(batches, stages + 1);
    default:
      if (w.chunks > 1)  // warm-up of 2(p - 1 - stage) + (v - 1)p chunks, and the one that follows
        return std::min(batches, (2 * (stages - 1 - stage) + (w.chunks - 1) * stages + 1) / w.chunks);
      return std::min(batches, stages - stage);
  }
}

absl::Status CheckSchedule(const Workload& w) {
  const int batches = w.Microbatches();
  if (w.schedule == Schedule::k1F1B) {
    if (w.chunks > 1 && (w.pp == 1 || batches % w.pp != 0))
      return InvalidArgument("vp {} needs a pipeline, and microbatches that are a multiple of pp {}; found {}",
                             w.chunks, w.pp, batches);
    return absl::OkStatus();
  }
  if (w.pp == 1 || w.chunks > 1)
    return InvalidArgument("schedule {} needs pp above 1 and vp 1, found pp {} and vp {}", ScheduleName(w.schedule),
                           w.pp, w.chunks);
  if (w.schedule == Schedule::kDualPipe && (w.pp % 2 != 0 || !w.stage_layers.empty()))
    return InvalidArgument("schedule dualpipe needs an even number of stages that are alike, found pp {}", w.pp);
  const bool is_even = w.schedule != Schedule::kDualPipe || batches % 2 == 0;
  const int least = w.schedule == Schedule::kZeroBubbleH1 ? w.pp : 2 * w.pp;
  if (batches < least || !is_even)
    return InvalidArgument("schedule {} needs at least {} microbatches{}, found {}: choose a smaller mbs, pp or dp",
                           ScheduleName(w.schedule), least, is_even ? "" : ", an even number", batches);
  return absl::OkStatus();
}

}  // namespace lockstep::plan
