#include "lockstep/trace/kineto_rings.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace lockstep::trace {
namespace {

// Of a rank in a group, in the order of launches. An exchange is both.
struct Passed {
  std::set<int> to, from;
  std::vector<const DeviceOp*> sends, receives;
};

// Whether some compute lies between the end of the one and the begin of the other.
bool ComputesBetween(const KinetoRank& rank, const RankStep& step, const DeviceOp& one, const DeviceOp& other) {
  const auto& [first, second] =
      std::minmax(one, other, [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  const auto behind = std::lower_bound(step.computes.begin(), step.computes.end(), first.end_ns(),
                                       [&](uint32_t op, int64_t time) { return rank.ops[op].begin_ns < time; });
  return behind != step.computes.end() && rank.ops[*behind].end_ns() <= second.begin_ns;
}

bool PassesOn(const KinetoRank& rank, const RankStep& step, const Passed& passed) {
  if (passed.to.size() != 1 || passed.from.size() != 1) return false;
  if (passed.to != passed.from) return true;
  if (passed.sends.size() != passed.receives.size()) return false;
  size_t answers = 0;
  for (size_t i = 0; i < passed.sends.size(); ++i)
    answers += ComputesBetween(rank, step, *passed.sends[i], *passed.receives[i]) ? 1 : 0;
  return 2 * answers < passed.sends.size();
}

std::map<uint32_t, Passed> PassedBy(const KinetoRank& rank, const RankStep& step) {
  std::map<uint32_t, Passed> passed;
  for (const uint32_t op : step.collectives) {
    const Collective& one = rank.collectives[rank.ops[op].collective];
    if (one.peer < 0 || one.group == kNoIndex) continue;
    Passed& own = passed[one.group];
    if (one.sends) own.to.insert(one.peer), own.sends.push_back(&rank.ops[op]);
    if (!one.sends || one.name == kExchange) own.from.insert(one.peer), own.receives.push_back(&rank.ops[op]);
  }
  return passed;
}

}  // namespace

std::vector<std::vector<bool>> FindRings(const std::vector<KinetoRank>& ranks,
                                         const std::vector<const RankStep*>& steps) {
  std::map<std::pair<std::string, std::vector<int>>, bool> groups;  // those with transfers: whether all pass on
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const auto& [group, passed] : PassedBy(ranks[rank], *steps[rank])) {
      const ProcessGroup& one = ranks[rank].groups[group];
      bool& all = groups.try_emplace({one.name, one.ranks}, true).first->second;
      all = all && PassesOn(ranks[rank], *steps[rank], passed);
    }
  std::vector<std::vector<bool>> rings;
  for (const KinetoRank& rank : ranks) {
    std::vector<bool>& own = rings.emplace_back();
    for (const ProcessGroup& group : rank.groups) {
      const auto found = groups.find({group.name, group.ranks});
      own.push_back(found != groups.end() && found->second);
    }
  }
  return rings;
}

}  // namespace lockstep::trace
