#include "lockstep/plan/sensitivity.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr double kNudge = 1e-3;

struct Figure {
  const char* name;
  double Machine::* member;
};
constexpr Figure kFigures[] = {
    {"machine.bf16_tflops", &Machine::bf16},       {"machine.fp8_tflops", &Machine::fp8},
    {"machine.fp4_tflops", &Machine::fp4},         {"machine.memory_gb_s", &Machine::bandwidth},
    {"machine.scale_up_gb_s", &Machine::scale_up}, {"machine.nic_gb_s", &Machine::nic}};
// Of what is offloaded alone.
constexpr Figure kHostFigures[] = {{"machine.host_link_gb_s", &Machine::host_link},
                                   {"machine.host_memory_gb_s", &Machine::host_bandwidth}};

// Both ways, for what is hidden on one side of a kink may not be on the other.
template <typename Nudged>
double Elasticity(const Nudged& nudged) {
  return std::log(nudged(1 + kNudge) / nudged(1 - kNudge)) / (std::log1p(kNudge) - std::log1p(-kNudge));
}

}  // namespace

Json SensitivitiesJson(const Workload& workload, const Rates& rates, bool of_rates) {
  Json all = Json::object();
  const auto add = [&](const Figure& figure) {
    if (workload.machine.*figure.member == 0) return;
    all[figure.name] = Elasticity([&](double factor) {
      Workload other = workload;
      other.machine.*figure.member *= factor;
      return PredictStep(other, rates).total().value;
    });
  };
  for (const Figure& figure : kFigures) add(figure);
  for (size_t i = 0; i < workload.machine.tiers.size(); ++i)
    all[fmt::format("machine.tier.{}.gb_s", i)] = Elasticity([&](double factor) {
      Workload other = workload;
      other.machine.tiers[i].bandwidth *= factor;
      return PredictStep(other, rates).total().value;
    });
  if (workload.offload.any())
    for (const Figure& figure : kHostFigures) add(figure);
  for (const RateField& field : RateFields()) {
    if (!of_rates || rates.*field.member == 0) continue;
    all[fmt::format("rates.{}", field.name)] = Elasticity([&](double factor) {
      Rates other = rates;
      other.*field.member *= factor;
      return PredictStep(workload, other).total().value;
    });
  }
  return all;
}

}  // namespace lockstep::plan
