#include "lockstep/trace/comm_share.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace lockstep::trace {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;  // begin, end; wall ns

int64_t Covered(Spans& spans) {
  std::ranges::sort(spans);
  int64_t covered = 0, end = spans.front().first;
  for (const auto& [from, to] : spans) {
    covered += std::max(int64_t{0}, to - std::max(from, end));
    end = std::max(end, to);
  }
  return covered;
}

// Of one rank, by how many each stands for.
double ShareOf(std::map<int64_t, Spans>& spans) {
  int64_t begin = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min(), covered = 0;
  for (auto& [stands_for, some] : spans) {
    covered += stands_for * Covered(some);
    begin = std::min(begin, some.front().first);
    for (const auto& [from, to] : some) end = std::max(end, to);
  }
  return std::min(1.0, static_cast<double>(covered) / static_cast<double>(end - begin));
}

}  // namespace

std::optional<double> ShareInCollectives(const CommLog& log) {
  std::map<int, std::map<int64_t, Spans>> by_rank;
  std::map<int, int> ended;
  for (const CommOp& op : log.ops) {
    if (op.state != OpState::kCompleted || op.created_ns < 0 || op.duration_ns <= 0) continue;
    by_rank[op.rank][log.communicators[op.communicator].StandsFor(op.after_long)].emplace_back(
        op.created_ns, op.created_ns + op.duration_ns);
    ++ended[op.rank];
  }
  double sum = 0;
  int ranks = 0;
  for (auto& [rank, spans] : by_rank) {
    if (ended[rank] < 2) continue;
    sum += ShareOf(spans);
    ++ranks;
  }
  if (ranks == 0) return std::nullopt;
  return sum / ranks;
}

}  // namespace lockstep::trace
