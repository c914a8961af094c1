#include "lockstep/detect/comm_rounds.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep::detect {
namespace {

using trace::CommOp;

bool HasTimes(const CommOp& op) {
  return op.direction == trace::Direction::kCollective && op.state == trace::OpState::kCompleted &&
         op.created_ns >= 0 && op.duration_ns >= 0;
}

}  // namespace

Rounds NewestRounds(const trace::CommLog& log, const CommThresholds& thresholds) {
  std::map<std::pair<uint32_t, int64_t>, Round> by_op;
  for (const CommOp& op : log.ops) {
    if (!HasTimes(op)) continue;
    Round& round = by_op
                       .try_emplace({op.communicator, op.sequence},
                                    Round{op.communicator, op.sequence, op.function, 0, false, op.created_ns, {}})
                       .first->second;
    round.bytes = std::max(round.bytes, op.bytes);
    round.ring = round.ring || op.ring;
    round.began_ns = std::min(round.began_ns, op.created_ns);
    round.parts.push_back({op.rank, op.created_ns, op.created_ns + op.duration_ns, op.alone_ns});
  }
  for (auto& [op, round] : by_op) {
    std::sort(round.parts.begin(), round.parts.end());
    const auto twice = std::unique(round.parts.begin(), round.parts.end(),
                                   [](const Part& a, const Part& b) { return a.rank == b.rank; });
    round.parts.erase(twice, round.parts.end());  // what was told twice
  }
  Rounds rounds;
  for (auto& [op, round] : by_op)
    if (round.parts.size() >= 2 && round.parts.size() == log.communicators[round.communicator].ranks.size())
      rounds.all.push_back(std::move(round));
  std::stable_sort(rounds.all.begin(), rounds.all.end(),
                   [](const Round& a, const Round& b) { return a.began_ns < b.began_ns; });
  for (const Round& round : rounds.all)
    for (const Part& part : round.parts) rounds.end_ns = std::max(rounds.end_ns, part.left_ns);
  const int64_t begin = rounds.end_ns - ToNanos(thresholds.window).value;
  auto first =
      std::find_if(rounds.all.begin(), rounds.all.end(), [&](const Round& round) { return round.began_ns >= begin; });
  const auto enough = static_cast<std::ptrdiff_t>(std::min(thresholds.window_ops, rounds.all.size()));
  first = std::min(first, rounds.all.end() - enough);
  rounds.all.erase(rounds.all.begin(), first);
  if (!rounds.all.empty()) rounds.begin_ns = rounds.all.front().began_ns;
  return rounds;
}

}  // namespace lockstep::detect
