#include "lockstep/trace/unknown_transfers.h"

#include <algorithm>
#include <map>

#include "lockstep/base/median.h"

namespace lockstep::trace {
namespace {

bool HasAllLanes(const TracedJob& job, size_t set) {
  return job.graph.first_lane[set + 1] - job.graph.first_lane[set] == static_cast<size_t>(job.dp);
}

bool LacksNothing(const TracedJob& job) {
  return job.graph.absent.empty() && job.put_back.empty() &&
         job.lanes.size() == job.steps.size() * static_cast<size_t>(job.dp);
}

// [lane]: 1: a member of the unit's group there was not recorded.
std::vector<float> LanesThatLack(const TracedJob& job, const graph::Unit& unit) {
  std::vector<float> lacks(job.lanes.size()), scratch(job.lanes.size());
  for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
    for (size_t lane = 0; lane < lacks.size(); ++lane)
      if (!IsRecorded(job, job.graph.Cell(op, lane))) lacks[lane] = 1;
  if (unit.scope != graph::Scope::kLane)
    for (size_t set = 0; set < job.steps.size(); ++set)
      if (!HasAllLanes(job, set)) lacks[job.graph.first_lane[set]] = 1;
  graph::SpreadLargest<float>(job.graph, unit.scope, 0, job.graph.first_lane, lacks, scratch.data());
  return lacks;
}

struct Transfers {
  std::vector<double> known;    // s
  std::vector<size_t> unknown;  // cells
};
using Kind = std::pair<uint32_t, int>;  // ideal class, stage

std::map<Kind, Transfers> TransfersOf(const TracedJob& job) {
  std::map<Kind, Transfers> transfers;
  for (const graph::Unit& unit : job.graph.units) {
    if (!unit.synchronised) continue;
    const std::vector<float> lacks = LanesThatLack(job, unit);
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op) {
      Transfers& of_kind = transfers[{job.ideal_class[op], job.ops[op].stage}];
      for (size_t lane = 0; lane < lacks.size(); ++lane) {
        const size_t cell = job.graph.Cell(op, lane);
        if (job.graph.IsAbsent(cell)) continue;
        if (lacks[lane] > 0)
          of_kind.unknown.push_back(cell);
        else
          of_kind.known.push_back(static_cast<double>(job.transfers[cell]));
      }
    }
  }
  return transfers;
}

}  // namespace

void BoundUnknownTransfers(TracedJob& job) {
  if (LacksNothing(job)) return;
  uint64_t shortened = 0;
  const std::map<Kind, Transfers> transfers = TransfersOf(job);
  std::map<uint32_t, std::vector<double>> known_of;  // [ideal class]
  for (const auto& [kind, of_kind] : transfers)
    known_of[kind.first].insert(known_of[kind.first].end(), of_kind.known.begin(), of_kind.known.end());
  for (const auto& [kind, of_kind] : transfers) {
    if (of_kind.unknown.empty()) continue;
    const std::vector<double>& known = of_kind.known.empty() ? known_of[kind.first] : of_kind.known;
    float usual = known.empty() ? job.transfers[of_kind.unknown.front()] : static_cast<float>(Median(known));
    for (const size_t cell : of_kind.unknown)
      if (known.empty()) usual = std::min(usual, job.transfers[cell]);
    for (const size_t cell : of_kind.unknown) {
      if (job.transfers[cell] <= usual) continue;
      job.transfers[cell] = usual;
      ++shortened;
    }
  }
  Count(job.counters, "unknown_transfers", shortened);
}

}  // namespace lockstep::trace
