#include "lockstep/trace/meetings.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace lockstep::trace {
namespace {

constexpr double kMostly = 0.8;  // of their meetings

// Of ops that may be one.
struct Candidate {
  std::vector<uint32_t> ops;
  graph::Partition partition;
  size_t holding = 0, all = 0;
};

graph::Partition EachAlone(size_t lanes) {
  graph::Partition partition(lanes);
  std::iota(partition.begin(), partition.end(), 0U);
  return partition;
}

graph::Partition WholeSets(const std::vector<uint32_t>& first_lane) {
  graph::Partition partition;
  partition.reserve(first_lane.back());
  for (size_t set = 0; set + 1 < first_lane.size(); ++set)
    partition.insert(partition.end(), first_lane[set + 1] - first_lane[set], first_lane[set]);
  return partition;
}

}  // namespace

Meetings::Meetings(std::vector<uint32_t> role_of_op, std::vector<uint32_t> first_lane)
    : role_of_op_(std::move(role_of_op)), first_lane_(std::move(first_lane)), leader_(role_of_op_.size()) {
  std::iota(leader_.begin(), leader_.end(), 0U);
}

uint32_t Meetings::LeaderOf(uint32_t op) const {
  while (leader_[op] != op) op = leader_[op];
  return op;
}

void Meetings::Add(std::vector<Member> members, bool holds) {
  for (const Member& member : members) {
    const uint32_t a = LeaderOf(members.front().op), b = LeaderOf(member.op);
    leader_[std::max(a, b)] = std::min(a, b);
  }
  meetings_.push_back({std::move(members), holds});
}

bool Meetings::OncePerRole(const std::vector<uint32_t>& ops) const {
  std::set<uint32_t> roles;
  return std::all_of(ops.begin(), ops.end(), [&](uint32_t op) { return roles.insert(role_of_op_[op]).second; });
}

uint64_t Meetings::AddGroups(const std::vector<uint32_t>& communications, graph::OpGraphBuilder& builder) {
  std::map<uint32_t, Candidate> candidates;  // by leader
  for (const uint32_t op : communications) {
    Candidate& candidate = candidates[LeaderOf(op)];
    candidate.ops.push_back(op);
    if (candidate.partition.empty()) candidate.partition = EachAlone(first_lane_.back());
  }
  for (const Meeting& meeting : meetings_) {
    Candidate& candidate = candidates[LeaderOf(meeting.members.front().op)];
    ++candidate.all;
    if (!meeting.holds) continue;
    ++candidate.holding;
    const auto first = std::min_element(meeting.members.begin(), meeting.members.end(),
                                        [](const Member& a, const Member& b) { return a.lane < b.lane; });
    for (const Member& member : meeting.members) candidate.partition[member.lane] = first->lane;
  }
  uint64_t single = 0;
  const graph::Partition whole_sets = WholeSets(first_lane_);
  std::map<graph::Partition, graph::Scope> scopes;
  for (auto& [leader, candidate] : candidates) {
    const bool mostly =
        candidate.all > 0 && static_cast<double>(candidate.holding) >= kMostly * static_cast<double>(candidate.all);
    if (!mostly || !OncePerRole(candidate.ops)) {
      single += candidate.ops.size();
      for (const uint32_t op : candidate.ops) builder.AddGroup({op}, graph::Scope::kLane);
      continue;
    }
    auto [scope, is_new] = scopes.emplace(candidate.partition, graph::Scope::kLaneSet);
    if (is_new && candidate.partition != whole_sets) scope->second = builder.AddPartition(candidate.partition);
    builder.AddGroup(candidate.ops, scope->second);
  }
  return single;
}

}  // namespace lockstep::trace
