#include "lockstep/sampling/sampler.h"

#include "lockstep/sampling/aligned.h"
#include "lockstep/sampling/dependent.h"
#include "lockstep/sampling/independent.h"
#include "lockstep/sampling/lap_orders.h"
#include "lockstep/sampling/order_sampler.h"
#include "lockstep/sampling/packed.h"

namespace lockstep::sampling {

std::string_view NameOf(Policy policy) {
  switch (policy) {
    case Policy::kDependent:
      return "dsa";
    case Policy::kCommon:
      return "common";
    case Policy::kPacked:
      return "packed";
    case Policy::kPaced:
      return "paced";
    case Policy::kAligned:
      return "aligned";
    case Policy::kIndependent:
      return "independent";
  }
  return "";
}

absl::StatusOr<Policy> ParsePolicy(std::string_view name) {
  for (const Policy policy : kAllPolicies) {
    if (NameOf(policy) == name) return policy;
  }
  return InvalidArgument("policy \"{}\": expected auto, dsa, common, packed, paced, aligned or independent", name);
}

std::unique_ptr<Sampler> MakeSampler(Policy policy, const SamplerOptions& options) {
  switch (policy) {
    case Policy::kDependent:
      return std::make_unique<DependentSampler>(options);
    case Policy::kCommon:
      return std::make_unique<OrderSampler>(options, std::make_unique<LapOrders>(options, false));
    case Policy::kPacked:
      return std::make_unique<OrderSampler>(options, std::make_unique<PackedOrders>(options));
    case Policy::kPaced:
      return std::make_unique<OrderSampler>(options, std::make_unique<LapOrders>(options, true));
    case Policy::kAligned:
      return std::make_unique<OrderSampler>(options, std::make_unique<AlignedOrders>(options));
    case Policy::kIndependent:
      return std::make_unique<OrderSampler>(options, std::make_unique<IndependentOrders>(options));
  }
  return nullptr;
}

}  // namespace lockstep::sampling
