#include "lockstep/explain/unsettled.h"

#include <algorithm>
#include <map>

#include "lockstep/explain/sample.h"
#include "lockstep/graph/replay.h"

namespace lockstep::explain {

std::vector<bool> AreSingle(const trace::TracedJob& job) {
  std::vector<bool> single(job.ops.size());
  for (const graph::Unit& unit : job.graph.units)
    single[unit.first] = unit.count == 1 && unit.scope == graph::Scope::kLane && !IsCompute(job.ops[unit.first].type);
  return single;
}

Unsettled FindUnsettled(const trace::KinetoJob& traced) {
  const trace::TracedJob& job = traced.job;
  using graph::Selection;
  const Selection all(job.ops.size(), Selection::kAll), none(job.ops.size(), Selection::kNone);
  Selection without = all;
  const std::vector<bool> single = AreSingle(job);
  std::map<int, double> by_rank;  // time in communication
  double settled = 0, open = 0;   // time in collectives
  double all_time = 0, unmatched_time = 0;
  Unsettled unsettled;
  for (uint32_t op = 0; op < job.ops.size(); ++op) {
    double transfers = 0;
    for (size_t lane = 0; lane < job.lanes.size() && !IsCompute(job.ops[op].type); ++lane)
      if (const size_t cell = job.graph.Cell(op, lane); !job.graph.IsAbsent(cell))
        transfers += static_cast<double>(job.transfers[cell]);
    if (!IsCompute(job.ops[op].type)) ++unsettled.communications;
    all_time += transfers;
    if (single[op] && traced.has_peers[op]) ++unsettled.unmatched, unmatched_time += transfers;
    const bool is_settled = traced.absent_peers[op].empty() && !(single[op] && traced.ranks.size() > 1);
    if (IsDataParallelComm(job.ops[op].type)) (is_settled ? settled : open) += transfers;
    if (is_settled) continue;
    without.Set(op, Selection::kNone);
    for (const int rank : traced.absent_peers[op]) by_rank[rank] += transfers;
  }
  const std::vector<double> no_time(job.ops.size(), 0);
  const graph::Replay replay(job.graph, {job.transfers, job.delays, no_time});
  graph::Replay::Scratch scratch;
  std::vector<double> measured(job.steps.size()), mended(job.steps.size());
  replay.SetTimes({all, none}, scratch, measured);
  replay.SetTimes({without, none}, scratch, mended);
  constexpr double kLittle = 0.01;
  unsettled.at_most_s = Mean(measured) - Mean(mended);
  unsettled.all_collectives = open > 0 && settled < kLittle * open;
  unsettled.unmatched_share = all_time > 0 ? unmatched_time / all_time : 0;
  for (const auto& [rank, time] : by_rank) unsettled.ranks.push_back(rank);
  std::stable_sort(unsettled.ranks.begin(), unsettled.ranks.end(),
                   [&](int a, int b) { return by_rank[a] > by_rank[b]; });
  return unsettled;
}

}  // namespace lockstep::explain
