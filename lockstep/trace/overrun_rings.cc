#include "lockstep/trace/overrun_rings.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace lockstep::trace {
namespace {

// Of a group, what a dump tells.
struct Told {
  int64_t first = INT64_MAX;  // number of a collective
  bool transfers = false;     // then counters are of either
};

// By the counters of each group nothing has been launched that has neither ended nor is told. False: it may have been.
bool TellsAllUnderWay(const Json& dump) {
  const Json& status = At(dump, "pg_status");
  if (!status.is_object() || status.empty()) return false;
  std::map<std::string, Told> told;
  for (const Json& entry : At(dump, "entries")) {
    Told& group = told[std::to_string(IntegerAt(entry, "pg_id", -1))];
    group.first = std::min(group.first, IntegerAt(entry, "collective_seq_id", INT64_MAX));
    group.transfers = group.transfers || IntegerAt(entry, "p2p_seq_id", 0) > 0;
  }
  return std::ranges::all_of(status.items(), [&](const auto& item) {
    const Json& counts = item.value();
    const int64_t ended = IntegerAt(counts, "last_completed_collective", -2);
    const int64_t launched = IntegerAt(counts, "last_enqueued_collective", -2);
    const Told group = told[item.key()];
    return launched == ended || (ended >= -1 && !group.transfers && group.first <= std::max<int64_t>(ended, 0) + 1);
  });
}

// Ranks that by their counters have something under way in a group of which nothing is told.
std::set<int> ThatTellNothing(const CommLog& log) {
  std::set<std::pair<uint32_t, int>> told;  // communicator and rank
  for (const CommOp& op : log.ops) told.emplace(op.communicator, op.rank);
  std::set<int> ranks;
  for (const CommCount& count : log.counts)
    if (count.completed >= 0 && count.enqueued > count.completed && !told.contains({count.communicator, count.rank}))
      ranks.insert(count.rank);
  return ranks;
}

}  // namespace

bool HasGaps(const std::set<int64_t>& records) {
  return *records.rbegin() - *records.begin() >= static_cast<int64_t>(records.size());
}

void OverrunRings::Take(int rank, const Json& dump, const std::set<int64_t>& records, bool none_ended) {
  const size_t count = records.size();
  longest_ = std::max(longest_, count);
  if (records.empty()) return;
  lacks_ = lacks_ || HasGaps(records);
  if (*records.begin() <= 0) return;
  begin_above_0_.insert(rank);
  shortest_ = std::min(shortest_, count);
  if (none_ended && !TellsAllUnderWay(dump)) open_.insert(rank);
}

std::set<int> OverrunRings::Ranks(const CommLog& log) const {
  std::set<int> lack = ThatTellNothing(log), ranks;
  lack.insert(lack_.begin(), lack_.end());
  std::ranges::set_intersection(lack, begin_above_0_, std::inserter(ranks, ranks.end()));
  if (!lacks_ && shortest_ == longest_) ranks.insert(open_.begin(), open_.end());
  return ranks;
}

}  // namespace lockstep::trace
