#include "lockstep/trace/process_alone.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep::trace {
namespace {

int64_t LaunchOf(const ls_record& op) { return op.time_ns - ls_delta_ns(op.body.op.duration, op.delta_shift); }

// What one library says of when the process was in it; both ascending.
struct Told {
  std::vector<int64_t> ends_ns;
  std::vector<int64_t> launches_ns;  // of ops of which only the launch is known
  int64_t from_ns = 0;               // what ended before may be forgotten
};

Told ToldBy(const TrailSnapshot& trail) {
  Told told;
  for (const ls_record& record : trail.ended) {
    if (record.kind != LS_RECORD_OP) continue;
    if (record.body.op.state >= LS_OP_COMPLETED)
      told.ends_ns.push_back(record.time_ns);
    else if (LaunchesAhead(trail))
      told.launches_ns.push_back(LaunchOf(record));
  }
  for (const ls_record& record : trail.under_way)
    if (record.kind == LS_RECORD_OP && record.body.op.state == LS_OP_LAUNCHED && LaunchesAhead(trail))
      told.launches_ns.push_back(record.time_ns);
  std::ranges::sort(told.ends_ns);
  std::ranges::sort(told.launches_ns);
  if (trail.missed > 0 && trail.told_one_of.empty()) {
    told.from_ns = trail.taken_ns;
    for (const ls_record& record : trail.ended) told.from_ns = std::min(told.from_ns, record.time_ns);
  }
  return told;
}

void LimitAlone(const Told& other, ls_record& op) {
  ls_op_body& body = op.body.op;
  const int64_t launch = LaunchOf(op), left = launch - ls_delta_ns(body.alone, op.delta_shift);
  const auto unseen = std::ranges::lower_bound(other.launches_ns, left);
  if (launch < other.from_ns || (unseen != other.launches_ns.end() && *unseen <= launch)) {
    body.alone = LS_UNKNOWN;
    return;
  }
  const auto after = std::ranges::upper_bound(other.ends_ns, launch);
  if (after != other.ends_ns.begin() && *std::prev(after) > left)
    body.alone = ls_delta(launch - *std::prev(after), op.delta_shift);
}

}  // namespace

bool LaunchesAhead(const TrailSnapshot& trail) { return trail.owner().second == "nccl"; }

void LimitAlone(std::span<TrailSnapshot> trails) {
  std::map<std::tuple<std::string, uint32_t, uint32_t>, std::vector<TrailSnapshot*>> of_processes;
  for (TrailSnapshot& trail :
       trails)  // batches of data are waited for by oneself: of the service's trail nothing is limited
    if (trail.owner().second != kDataLibrary)
      of_processes[{trail.host(), trail.origin.pid, trail.origin.rank}].push_back(&trail);
  for (const auto& [process, all] : of_processes) {
    if (all.size() < 2) continue;
    std::vector<Told> told;
    for (const TrailSnapshot* trail : all) told.push_back(ToldBy(*trail));
    for (size_t i = 0; i < all.size(); ++i)
      for (ls_record& record : all[i]->ended) {
        const ls_op_body& op = record.body.op;
        const bool transfer = op.function == LS_SEND || op.function == LS_RECEIVE;
        for (size_t other = 0; other < all.size(); ++other)
          if (other != i && record.kind == LS_RECORD_OP && !transfer && op.alone != LS_UNKNOWN)
            LimitAlone(told[other], record);
      }
  }
}

}  // namespace lockstep::trace
