#include "lockstep/trace/unknown_members.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/trace/dump_moments.h"

namespace lockstep::trace {
namespace {

// What a rank calls its collectives in a group, and with what shape where all must bring the same, by their numbers.
using Calls = std::map<int64_t, std::pair<uint32_t, std::string>>;

// By the first that both tell: of one group, a later one that differs is a mismatch.
bool GoTogether(const Calls& a, const Calls& b) {
  const auto first = std::ranges::find_if(a, [&](const auto& call) { return b.contains(call.first); });
  return first == a.end() || b.at(first->first) == first->second;
}

}  // namespace

void FillUnknownMembers(CommLog& log) {
  std::map<uint32_t, std::map<int, Calls>> users;
  for (const CommOp& op : log.ops) {
    Calls& calls = users[op.communicator][op.rank];
    if (op.direction != Direction::kCollective) continue;
    calls[op.sequence] = {op.function, NeedsAll(log.functions[op.function]) ? op.shape : ""};
  }
  std::map<std::pair<uint32_t, int>, uint32_t> moved;
  for (const auto& [communicator, calls_of] : users) {
    if (!log.communicators[communicator].ranks.empty()) continue;
    if (log.communicators[communicator].name == "0") {
      log.communicators[communicator].ranks = log.reported;
      continue;
    }
    // A process counts its groups by itself: where calls differ, the number is another group's there.
    std::vector<std::pair<uint32_t, Calls>> groups;
    for (const auto& [rank, calls] : calls_of) {
      auto group = std::ranges::find_if(groups, [&](const auto& one) { return GoTogether(one.second, calls); });
      if (group == groups.end()) {
        uint32_t index = communicator;
        if (!groups.empty()) {
          index = static_cast<uint32_t>(log.communicators.size());
          log.communicators.push_back({log.communicators[communicator].name, "", {}});
        }
        group = groups.insert(groups.end(), {index, {}});
      }
      group->second.insert(calls.begin(), calls.end());
      log.communicators[group->first].ranks.push_back(rank);
      moved[{communicator, rank}] = group->first;
    }
  }
  for (CommOp& op : log.ops)
    if (const auto to = moved.find({op.communicator, op.rank}); to != moved.end()) op.communicator = to->second;
  for (CommCount& count : log.counts)
    if (const auto to = moved.find({count.communicator, count.rank}); to != moved.end())
      count.communicator = to->second;
}

}  // namespace lockstep::trace
