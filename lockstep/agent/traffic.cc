#include "lockstep/agent/traffic.h"

#include <algorithm>
#include <ranges>

namespace lockstep::agent {
namespace {

bool HasSomethingUnderWay(const trace::TrailFile& trail) {
  return std::ranges::any_of(trail->used,
                             [](const uint64_t& places) { return __atomic_load_n(&places, __ATOMIC_RELAXED) != 0; });
}

}  // namespace

void Traffic::Follow(std::vector<trace::TrailFile> trails) {
  const std::lock_guard lock(mutex_);
  trails_ = std::move(trails);
}

std::optional<bool> Traffic::IsUnderWay() const {
  const std::lock_guard lock(mutex_);
  if (trails_.empty()) return std::nullopt;
  return std::ranges::any_of(trails_, HasSomethingUnderWay);
}

}  // namespace lockstep::agent
