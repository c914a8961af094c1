// How much of a step a pipeline's schedule leaves idle, and what memory it takes, in closed form: 1F1B and interleaved
// (arXiv 2104.04473), the zero-bubble schedules ZB-H1 and ZB-2p (arXiv 2401.10241, by hand as its ZB-H2), DualPipe
// (arXiv 2412.19437). What they compute in which order is in schedule_order.h. Pure.
#pragma once

#include <string_view>

#include "lockstep/plan/variant.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

const char* ScheduleName(Schedule schedule);
absl::StatusOr<Schedule> ParseSchedule(std::string_view name);

// Seconds of one microbatch: forward, backward for the input, backward for the weights.
struct Passes {
  double forward = 0, input = 0, weight = 0;
  double total() const { return forward + input + weight; }
};
inline Passes Plus(const Passes& a, double times, const Passes& b) {
  return {a.forward + times * b.forward, a.input + times * b.input, a.weight + times * b.weight};
}
// Idle seconds of the slowest stage; `others`: the sum over all other stages. ZB-2p counts from a stage's own begin to
// its own end, for it checks the gradients' norm when the next step has begun.
double BubbleSeconds(Schedule schedule, int stages, int chunks, const Passes& others, const Passes& slowest);

// Microbatches whose activations a stage holds at most, in units of all its layers; of DualPipe in units of one of its
// two stages.
double InFlight(const Variant& variant, double stages, double microbatches, double stage);
// How often the weights of a layer are there within a pipeline.
inline int CopiesOf(Schedule schedule) { return schedule == Schedule::kDualPipe ? 2 : 1; }

bool CanRun(const Variant& variant, int stages, int microbatches);
// kInvalidArgument: stages, chunks or microbatches with which the schedule of the workload can't be, and why.
absl::Status CheckSchedule(const Workload& workload);

}  // namespace lockstep::plan
