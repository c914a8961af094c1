#include "lockstep/trace/trail_choice.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "lockstep/trace/process_alone.h"

namespace lockstep::trace {
namespace {

// Beyond this, what a trail says was not written by a collector.
constexpr uint32_t kMostRanks = 1 << 20;
constexpr int64_t kMostNs = int64_t{1} << 61;  // 73 years
constexpr uint8_t kMostShift = 31;

bool IsTime(int64_t ns) { return ns >= 0 && ns < kMostNs; }

// Leaves out what makes no sense, and counts it. False: nothing of the trail does.
bool Clear(TrailSnapshot& trail, std::vector<Counter>& counters) {
  if (trail.origin.rank >= trail.origin.world || trail.origin.world > kMostRanks || !IsTime(trail.taken_ns) ||
      trail.wall_minus_boot_ns >= kMostNs || trail.wall_minus_boot_ns <= -kMostNs) {
    Count(counters, "trails_without_sense", 1);
    return false;
  }
  for (ls_communicator& own : trail.communicators)
    if (own.size > kMostRanks || own.rank > kMostRanks || (own.size > 0 && own.rank >= own.size) ||  // 0: not known
        !IsTime(own.created_ns))
      own.id = 0;
  const auto makes_none = [](const ls_record& record) {
    return !IsTime(record.time_ns) || record.delta_shift > kMostShift;
  };
  const size_t erased = std::erase_if(trail.ended, makes_none) + std::erase_if(trail.under_way, makes_none);
  Count(counters, "unreadable_records", erased);
  return true;
}

// When the process last made a communicator, on its host's clock.
int64_t BegunAt(const TrailSnapshot& trail) {
  int64_t last = 0;
  for (const ls_communicator& own : trail.communicators) last = std::max(last, own.created_ns);
  return last;
}

// Whether it tells of the job's present rather than the other one does. Trails of waits for data have no communicators.
bool IsNewer(const TrailSnapshot& a, const TrailSnapshot& b) {
  const auto newest = [](const TrailSnapshot& trail) {
    int64_t last = 0;
    for (const auto* records : {&trail.ended, &trail.under_way})
      for (const ls_record& record : *records) last = std::max(last, record.time_ns);
    return std::tuple(BegunAt(trail), trail.alive, last);
  };
  return newest(b) < newest(a);
}

// Wall times between which its process is known to have communicated.
std::pair<int64_t, int64_t> SpanOf(const TrailSnapshot& trail) {
  int64_t last = trail.alive ? trail.taken_ns : BegunAt(trail);
  for (const ls_record& record : trail.ended) last = std::max(last, record.time_ns);
  const int64_t first = trail.communicators.empty() ? last : trail.born_ns();
  return {first + trail.wall_minus_boot_ns, last + trail.wall_minus_boot_ns};
}

// One that was started again after the other had ended is no riddle.
bool AreAtTheSameTime(const TrailSnapshot& a, const TrailSnapshot& b) {
  const auto [a_first, a_last] = SpanOf(a);
  const auto [b_first, b_last] = SpanOf(b);
  return a_first < b_last && b_first < a_last;
}

// Read from itself, and from a file that kept what it had said before, perhaps in another epoch.
bool IsSameProcess(const TrailSnapshot& a, const TrailSnapshot& b) {
  return a.origin.pid != 0 && a.origin.pid == b.origin.pid && a.host() == b.host() && a.born_ns() == b.born_ns();
}

// Of a worker that went on in place: what it still says of communicators that ended with their epoch says nothing of
// the job, and their other members may be gone.
uint64_t LeaveOutOlder(uint32_t epoch, TrailSnapshot& trail) {
  const auto is_older = [&](const ls_communicator& own) { return own.epoch != 0 && own.epoch < epoch; };
  const auto is_of_older = [&](const ls_record& record) {
    const bool op = record.kind == LS_RECORD_OP, transfer = record.kind == LS_RECORD_TRANSFER;
    const uint32_t of = op ? record.body.op.communicator : record.body.transfer.communicator;
    return (op || transfer) && of < trail.communicators.size() && is_older(trail.communicators[of]);
  };
  std::erase_if(trail.ended, is_of_older);
  std::erase_if(trail.under_way, is_of_older);
  uint64_t older = 0;
  for (ls_communicator& own : trail.communicators)
    if (is_older(own)) {
      own.id = 0;
      ++older;
    }
  return older;
}

void Append(TrailSnapshot& known, TrailSnapshot more) {
  if (more.taken_ns > known.taken_ns) std::swap(known, more);
  known.ended.insert(known.ended.end(), more.ended.begin(), more.ended.end());
  DropTwice(known.ended);
}

}  // namespace

ChosenTrails ChooseTrails(std::vector<TrailSnapshot> trails) {
  ChosenTrails all;
  std::erase_if(trails, [&](TrailSnapshot& trail) { return !Clear(trail, all.counters); });
  uint32_t epoch = 0;
  for (const TrailSnapshot& trail : trails) epoch = std::max(epoch, trail.origin.epoch);
  std::map<std::pair<uint32_t, std::string>, TrailSnapshot> chosen_of;  // by owner
  uint64_t older = 0, twice = 0;
  for (TrailSnapshot& trail : trails) {
    if (trail.origin.epoch != epoch && !trail.alive) {  // a worker may outlive its epoch, by entering it again
      ++older;
      continue;
    }
    auto owner = trail.owner();
    const auto known = chosen_of.find(owner);
    if (known != chosen_of.end() && !IsSameProcess(known->second, trail)) {
      ++twice;
      all.riddles += AreAtTheSameTime(known->second, trail);
    }
    if (known == chosen_of.end())
      chosen_of.emplace(std::move(owner), std::move(trail));
    else if (IsSameProcess(known->second, trail))
      Append(known->second, std::move(trail));
    else if (IsNewer(trail, known->second))
      known->second = std::move(trail);
  }
  all.senseless = !all.counters.empty();
  uint64_t older_communicators = 0;
  for (auto& [owner, trail] : chosen_of) {
    older_communicators += LeaveOutOlder(epoch, trail);
    all.trails.push_back(std::move(trail));
  }
  LimitAlone(all.trails);
  Count(all.counters, "trails_of_older_epochs", older);
  Count(all.counters, "communicators_of_older_epochs", older_communicators);
  Count(all.counters, "trails_of_ranks_told_twice", twice);
  return all;
}

}  // namespace lockstep::trace
