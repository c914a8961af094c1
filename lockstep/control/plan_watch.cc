#include "lockstep/control/plan_watch.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"

namespace lockstep::control {
namespace {

constexpr Seconds kSteady{10};  // agents tell of collectives every 5 s
constexpr char kExpected[] = "expected what `lockstep plan ... --layout ... --json` writes";

// What the records of collectives say of the difference. Time outside of them is no communication; within them, ranks
// may also wait for each other.
std::string WhereItGoes(const PlannedStep& plan, double step, double share) {
  const double within = share * step, outside = step - within;
  const double planned_outside = plan.step_time.value - plan.communication.value;
  const bool computes = outside - planned_outside >= (step - plan.step_time.value) / 2;
  return fmt::format(
      "{:.3g} s of it in collectives, {:.3g} s outside of them; the plan has {:.3g} s of communication that is not "
      "hidden, {:.3g} s of all else: {}",
      within, outside, plan.communication.value, planned_outside,
      computes ? "computing, or the host, takes longer"
               : "most of the difference is within collectives: messages, waiting for others, or what computes beside");
}

}  // namespace

absl::StatusOr<PlannedStep> ReadPlannedStep(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return MakeError(text.status().code(), "--plan " + Message(text.status()));
  const Json json = ParseJson(*text);
  if (!json.is_object()) return InvalidArgument("--plan {}: no JSON object; {}", path, kExpected);
  if (json.contains("best"))
    return InvalidArgument("--plan {}: the best of many layouts; {}: of the one that runs", path, kExpected);
  PlannedStep plan;
  plan.path = path;
  plan.layout = TextAt(json, "layout");
  const auto take = [&](const char* key, double least, double& to) -> absl::Status {
    const Json& value = At(json, key);
    if (!value.is_number() || !(value.get<double>() >= least))
      return InvalidArgument("--plan {}: {} is {}, expected a number of {} or more; {}", path, key, OneLine(value),
                             least, kExpected);
    to = value.get<double>();
    return absl::OkStatus();
  };
  constexpr double kLeast = 1e-9;  // s
  double accelerators = 0;
  LS_RETURN_IF_ERROR(take("step_time_s", kLeast, plan.step_time.value));
  LS_RETURN_IF_ERROR(take("lo80", kLeast, plan.low.value));
  LS_RETURN_IF_ERROR(take("hi80", kLeast, plan.high.value));
  LS_RETURN_IF_ERROR(take("exposed_communication_s", 0, plan.communication.value));
  LS_RETURN_IF_ERROR(take("accelerators", 1, accelerators));
  plan.accelerators = static_cast<int>(accelerators);
  if (plan.low > plan.step_time || plan.step_time > plan.high)
    return InvalidArgument("--plan {}: step_time_s is not between lo80 and hi80; {}", path, kExpected);
  return plan;
}

std::optional<incident::Finding> PlanWatch::At(Seconds step_time, int ranks, Nanos now,
                                               const std::function<std::optional<double>()>& in_collectives) {
  if (step_time.value <= 0 || ranks != plan_.accelerators) return std::nullopt;
  if (step_time <= plan_.high) {
    told_ = false;
    beyond_since_.reset();
    return std::nullopt;
  }
  if (!beyond_since_) beyond_since_ = now;
  if (told_ || now - *beyond_since_ < ToNanos(kSteady)) return std::nullopt;
  told_ = true;
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kPlanDrift;
  finding.evidence = {fmt::format("steps take {:.3g} s; the plan said {:.3g} ({:.3g} to {:.3g})", step_time.value,
                                  plan_.step_time.value, plan_.low.value, plan_.high.value)};
  if (const std::optional<double> share = in_collectives())
    finding.evidence.push_back(WhereItGoes(plan_, step_time.value, *share));
  finding.certain = true;  // it was measured
  finding.since = *beyond_since_;
  return finding;
}

Json PlanWatch::Report(Seconds step_time, int ranks) const {
  const bool of_this_world = ranks == plan_.accelerators, is_known = of_this_world && step_time.value > 0;
  std::string verdict = "within";
  if (step_time > plan_.high) verdict = "slower";
  if (step_time < plan_.low) verdict = "faster";
  if (!is_known) verdict = "not known yet";
  if (!of_this_world) verdict = fmt::format("of {} accelerators; {} ranks run", plan_.accelerators, ranks);
  return {{"file", plan_.path},
          {"layout", plan_.layout},
          {"predicted_s", plan_.step_time.value},
          {"lo80", plan_.low.value},
          {"hi80", plan_.high.value},
          {"step_time_s", is_known ? Json(step_time.value) : Json()},
          {"drift", is_known ? Json(step_time.value / plan_.step_time.value - 1) : Json()},
          {"verdict", verdict}};
}

}  // namespace lockstep::control
