// Does a job keep to its plan? The plan: what `lockstep plan ... --layout ... --json` wrote. Steps that take longer
// than the upper end of its interval, for ten seconds, are told once, until they are back within it; nothing is done
// about it.
//
//   LS_ASSIGN_OR_RETURN(PlannedStep plan, ReadPlannedStep("plan.json"));
//   PlanWatch watch(std::move(plan));
//   if (const auto finding = watch.At(judge.step_time(), ranks, now, [&] { return judge.in_collectives(); })) ...
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/incident/incident.h"

namespace lockstep::control {

struct PlannedStep {
  std::string path, layout;
  int accelerators = 0;
  Seconds step_time, low, high;  // 80 % of such steps are between the last two
  Seconds communication;         // that computing does not hide
};
// kInvalidArgument: it is no such document.
absl::StatusOr<PlannedStep> ReadPlannedStep(const std::string& path);

class PlanWatch {
 public:
  explicit PlanWatch(PlannedStep plan) : plan_(std::move(plan)) {}

  // What to tell now; `now` never goes back. step_time: of the job lately; 0: not known yet. in_collectives: the share
  // of the time that ranks spend in collectives, if their records tell; asked where there is something to tell.
  std::optional<incident::Finding> At(Seconds step_time, int ranks, Nanos now,
                                      const std::function<std::optional<double>()>& in_collectives);
  // {file, layout, predicted_s, lo80, hi80, step_time_s, drift, verdict}. drift: step_time_s / predicted_s - 1, null
  // while it is not known. verdict: "within", "slower", "faster", "not known yet", or "of 8 accelerators; 4 ranks run".
  Json Report(Seconds step_time, int ranks) const;

 private:
  PlannedStep plan_;
  std::optional<Nanos> beyond_since_;
  bool told_ = false;
};

}  // namespace lockstep::control
