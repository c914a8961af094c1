#include "lockstep/trace/group_counts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::trace {

void GroupCounts::Take(int64_t group, int64_t collective, int64_t transfer) {
  Newest& newest = newest_[group];
  newest.collective = std::max(newest.collective, collective);
  newest.transfer = std::max(newest.transfer, transfer);
}

std::optional<int64_t> GroupCounts::Ended(int64_t group, bool transfer) const {
  const auto newest = newest_.find(group);
  if (status_ == nullptr || newest == newest_.end()) return std::nullopt;
  const int64_t ended = NumberAt(At(*status_, std::to_string(group)), "last_completed_collective");
  const int64_t other = transfer ? newest->second.collective : newest->second.transfer;
  return ended > other || (ended == 0 && other == 0) ? std::optional(ended) : std::nullopt;
}

int64_t GroupCounts::NumberAt(const Json& counts, const char* key) {
  return At(counts, key).is_number_integer() ? std::max<int64_t>(0, IntegerAt(counts, key, -1)) : -1;
}

}  // namespace lockstep::trace
