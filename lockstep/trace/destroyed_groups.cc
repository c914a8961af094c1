#include "lockstep/trace/destroyed_groups.h"

#include <algorithm>

namespace lockstep::trace {
namespace {

// Of a name and ranks that were given anew.
struct Anew {
  int64_t end_ns = -1, begin_ns = INT64_MAX;  // of the groups before, and of the newest: wall times
  int groups = 0;                             // the most that a rank is known to have launched something in
};

}  // namespace

void DestroyedGroups::Drop(int rank, const std::vector<int64_t>& ids, CommLog& log) {
  std::map<uint32_t, Use> uses;
  const size_t begin = log.ops.size() - ids.size();
  int64_t oldest = INT64_MAX, newest = -1;  // of the default group
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t communicator = log.ops[begin + i].communicator;
    Use& use = uses[communicator];
    if (ids[i] > use.id) {
      use.id = ids[i];
      ++use.groups;
    }
    if (log.communicators[communicator].name != "0") continue;
    if (oldest == INT64_MAX && ids[i] > 0) ++use.groups;  // what was launched in the first, 0, is overwritten
    oldest = std::min(oldest, ids[i]);
    newest = std::max(newest, ids[i]);
  }
  if (oldest < newest)
    for (auto& [communicator, use] : uses) use.id = std::max(use.id, newest);
  size_t kept = begin;
  for (size_t i = 0; i < ids.size(); ++i) {
    CommOp& op = log.ops[begin + i];
    Use& use = uses.at(op.communicator);
    if (ids[i] < use.id) {
      use.before_ns = std::max(use.before_ns, op.created_ns);
      continue;
    }
    use.first_ns = std::min(use.first_ns, op.created_ns);
    use.last_ns = std::max(use.last_ns, op.created_ns);
    if (kept != begin + i) log.ops[kept] = std::move(op);
    ++kept;
  }
  dropped_ += log.ops.size() - kept;
  log.ops.resize(kept);
  for (const auto& [communicator, use] : uses) uses_[{communicator, rank}] = use;
}

bool DestroyedGroups::IsDestroyed(uint32_t communicator, int rank, int64_t id) const {
  const auto use = uses_.find({communicator, rank});
  return use != uses_.end() && id < use->second.id;
}

void DestroyedGroups::DropLeftBehind(CommLog& log) {
  std::map<uint32_t, Anew> all;  // by communicator
  for (const auto& [user, use] : uses_)
    if (use.before_ns >= 0) {
      Anew& anew = all[user.first];
      anew.end_ns = std::max(anew.end_ns, use.before_ns);
      anew.groups = std::max(anew.groups, use.groups);
    }
  if (all.empty()) return;
  for (const auto& [user, use] : uses_)
    if (const auto found = all.find(user.first);
        found != all.end() && use.before_ns >= 0 && use.first_ns > found->second.end_ns)
      found->second.begin_ns = std::min(found->second.begin_ns, use.first_ns);
  const auto is_left = [&](const auto& one) {
    const auto found = all.find(one.communicator);
    const auto use = uses_.find({one.communicator, one.rank});
    return found != all.end() && found->second.begin_ns != INT64_MAX && use != uses_.end() &&
           use->second.groups < found->second.groups && use->second.last_ns < found->second.begin_ns;
  };
  dropped_ += std::erase_if(log.ops, is_left);
  std::erase_if(log.counts, is_left);
}

}  // namespace lockstep::trace
