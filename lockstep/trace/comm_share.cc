#include "lockstep/trace/comm_share.h"

#include <algorithm>
#include <utility>

namespace lockstep::trace {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;  // begin, end; wall ns

double ShareOf(Spans spans) {
  std::ranges::sort(spans);
  int64_t covered = 0, end = spans.front().first;
  for (const auto& [from, to] : spans) {
    covered += std::max(int64_t{0}, to - std::max(from, end));
    end = std::max(end, to);
  }
  return static_cast<double>(covered) / static_cast<double>(end - spans.front().first);
}

}  // namespace

std::optional<double> ShareInCollectives(const CommLog& log) {
  const auto thinned = [](const Communicator& one) { return one.told_one_of > 1; };
  if (std::ranges::any_of(log.communicators, thinned)) return std::nullopt;
  std::map<int, Spans> by_rank;
  for (const CommOp& op : log.ops)
    if (op.state == OpState::kCompleted && op.created_ns >= 0 && op.duration_ns > 0)
      by_rank[op.rank].emplace_back(op.created_ns, op.created_ns + op.duration_ns);
  double sum = 0;
  int ranks = 0;
  for (auto& [rank, spans] : by_rank) {
    if (spans.size() < 2) continue;
    sum += ShareOf(std::move(spans));
    ++ranks;
  }
  if (ranks == 0) return std::nullopt;
  return sum / ranks;
}

}  // namespace lockstep::trace
