#include "lockstep/trace/unknown_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/trace/dump_moments.h"

namespace lockstep::trace {
namespace {

// What a rank calls a collective, with the shape where all must bring the same.
struct Call {
  uint32_t function = 0, shape = 0;
  bool needs_all = false, ended = false;
  bool needed_all = false;  // it has ended on a rank, which it does on none before all have launched it
};
using Calls = std::map<int64_t, Call>;  // by their numbers

// Ranks that are taken to be one group's.
struct Group {
  Calls calls;
  std::vector<int> ranks;
};

enum class Fit : uint8_t { kAlike, kNotKnown, kApart };

// By the first that both tell: of one group, a later one that differs is a mismatch; so may be the first, unless it has
// ended.
Fit FitOf(const Calls& a, const Calls& b) {
  const auto first = std::ranges::find_if(a, [&](const auto& call) { return b.contains(call.first); });
  if (first == a.end()) return Fit::kAlike;
  const Call &one = first->second, &other = b.at(first->first);
  if (one.function == other.function && one.shape == other.shape) return Fit::kAlike;
  return one.needed_all || other.needed_all ? Fit::kApart : Fit::kNotKnown;
}

void Join(const Group& more, Group& group) {
  for (const auto& [number, call] : more.calls) {
    Call& known = group.calls.try_emplace(number, call).first->second;
    known.needed_all = known.needed_all || call.needed_all;
  }
  group.ranks.insert(group.ranks.end(), more.ranks.begin(), more.ranks.end());
}

// The newest that it has ended: what is before one that has not is not told in a dump of what is under way alone.
int64_t EndedOf(const Calls& calls) {
  const auto open = std::ranges::find_if(calls, [](const auto& call) { return !call.second.ended; });
  return open != calls.end() ? open->first - 1 : calls.empty() ? -1 : calls.rbegin()->first;
}

// Some have ended an op that needs all, and others have not: of one group these may be left in it, of two they may be
// anywhere.
bool MayBeTwo(const Group& group, const std::map<int, Calls>& calls_of) {
  int64_t least = INT64_MAX, most = -1;
  for (const int rank : group.ranks) {
    const int64_t ended = EndedOf(calls_of.at(rank));
    least = std::min(least, ended);
    most = std::max(most, ended);
  }
  return std::any_of(group.calls.upper_bound(least), group.calls.upper_bound(most),
                     [](const auto& call) { return call.second.needs_all; });
}

// A process counts its groups by itself: where calls differ, the number is another group's there. Unless it is one
// rank's alone, against one group of all others: that may have left an op out. Where another rank has none of that
// number, the group of the one alone may be with that. True: there was such a one.
bool FindGroups(const std::map<int, Calls>& calls_of, size_t reported, std::vector<Group>& groups) {
  for (const auto& [rank, calls] : calls_of) {
    const auto group =
        std::ranges::find_if(groups, [&](const Group& one) { return FitOf(one.calls, calls) == Fit::kAlike; });
    Join({calls, {rank}}, group == groups.end() ? groups.emplace_back() : *group);
  }
  const auto is_alone = [](const Group& group) { return group.ranks.size() == 1; };
  if (groups.size() != 2 || std::ranges::none_of(groups, is_alone) || calls_of.size() < reported ||
      FitOf(groups.front().calls, groups.back().calls) != Fit::kNotKnown)
    return false;
  Join(groups.back(), groups.front());
  groups.pop_back();
  std::ranges::sort(groups.front().ranks);
  return true;
}

}  // namespace

void FillUnknownMembers(CommLog& log) {
  std::map<uint32_t, std::map<int, Calls>> users;
  for (const CommOp& op : log.ops) {
    Calls& calls = users[op.communicator][op.rank];
    if (op.direction != Direction::kCollective) continue;
    const bool needs_all = NeedsAll(log.functions[op.function]);
    const bool ended = op.state == OpState::kCompleted;
    calls[op.sequence] = {op.function, needs_all ? op.shape : 0, needs_all, ended, needs_all && ended};
  }
  std::map<std::pair<uint32_t, int>, uint32_t> moved;
  for (const auto& [communicator, calls_of] : users) {
    if (!log.communicators[communicator].ranks.empty()) continue;
    const std::string name = log.communicators[communicator].name;
    if (name == "0") {
      log.communicators[communicator].ranks = log.reported;
      continue;
    }
    std::vector<int> perhaps;
    std::ranges::copy_if(log.reported, std::back_inserter(perhaps), [&](int rank) { return !calls_of.contains(rank); });
    std::vector<Group> groups;
    const bool doubtful = FindGroups(calls_of, log.reported.size(), groups);
    for (Group& group : groups) {
      uint32_t index = communicator;
      if (&group != &groups.front()) {
        index = static_cast<uint32_t>(log.communicators.size());
        log.communicators.push_back({name, "", {}});
      }
      if (doubtful || MayBeTwo(group, calls_of))
        log.communicators[index].doubt =
            fmt::format("which ranks are in process group {}: dumps before version 2 do not tell", name);
      for (const int rank : group.ranks) moved[{communicator, rank}] = index;
      log.communicators[index].ranks = std::move(group.ranks);
      log.communicators[index].perhaps = perhaps;
    }
  }
  for (CommOp& op : log.ops)
    if (const auto to = moved.find({op.communicator, op.rank}); to != moved.end()) op.communicator = to->second;
  for (CommCount& count : log.counts)
    if (const auto to = moved.find({count.communicator, count.rank}); to != moved.end())
      count.communicator = to->second;
}

}  // namespace lockstep::trace
