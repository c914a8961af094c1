#include "lockstep/detect/look_back.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "lockstep/base/units.h"
#include "lockstep/detect/job_steps.h"

namespace lockstep::detect {
namespace {

// Three for each quarter, one of which its ends may cut off.
constexpr double kLongStretches = 12;
constexpr Seconds kLately{60};

double OfRanksNs(const Stretch& stretch) {
  return static_cast<double>(stretch.ns) * static_cast<double>(stretch.ranks);
}

// Of each rank: the start, a pause, a data set that is loaded. What came up no more often sets no scale.
constexpr size_t kSingle = 2;

// Three quarters of the time go by in stretches that are no longer: a checkpoint or an evaluation now and then is.
double LongNs(std::vector<Stretch> stretches, size_t ranks) {
  std::ranges::sort(stretches, {}, &Stretch::ns);
  for (size_t left = kSingle * ranks; !stretches.empty() && stretches.back().ranks <= left; stretches.pop_back())
    left -= stretches.back().ranks;
  double all_ns = 0, up_to_ns = 0;
  for (const Stretch& stretch : stretches) all_ns += OfRanksNs(stretch);
  for (const Stretch& stretch : stretches)
    if ((up_to_ns += OfRanksNs(stretch)) >= 0.75 * all_ns) return static_cast<double>(stretch.ns);
  return 0;
}

bool IsCollective(const ls_record& record) { return record.kind == LS_RECORD_OP && record.body.op.number != 0; }

// Of a rank, whichever library it used.
JobSteps StepsOf(const std::vector<const trace::TrailSnapshot*>& of_rank) {
  std::vector<Met> all;
  uint32_t before = 0;  // communicators of other trails
  for (const trace::TrailSnapshot* trail : of_rank) {
    uint32_t own = 0;
    for (const ls_record& record : trail->ended) {
      const ls_op_body& op = record.body.op;
      if (!IsCollective(record)) continue;
      all.push_back({before + op.communicator, op.number, op.function, MovesOf(op.function), record.time_ns, op.bytes});
      own = std::max(own, op.communicator + 1);
    }
    before += own;
  }
  return FindJobSteps(std::move(all));
}

// Twice as far as needed, as ranks tell at different moments, and some are late. None: the trail has no collectives.
std::optional<int64_t> SinceNs(const trace::TrailSnapshot& trail, const JobSteps& steps) {
  std::vector<std::pair<int64_t, Stretch>> ended;  // by time
  for (const ls_record& record : trail.ended)
    if (IsCollective(record) && record.body.op.alone != LS_UNKNOWN)
      ended.push_back({record.time_ns, {ls_delta_ns(record.body.op.alone, record.delta_shift)}});
  if (ended.empty()) return std::nullopt;
  std::ranges::sort(ended, {}, &std::pair<int64_t, Stretch>::first);
  std::vector<Stretch> stretches;
  stretches.reserve(ended.size());
  for (const auto& [time_ns, stretch] : ended) stretches.push_back(stretch);
  const int64_t lately = std::min(trail.taken_ns - ToNanos(kLately).value, steps.SinceNs(2 * JobSteps::kWanted));
  const size_t first = LookBackTo(stretches, 2).first;
  return first == ended.size() ? lately : std::min(lately, ended[first].first);
}

// Those since then; of very many, several in a row as one.
void TellSteps(const JobSteps& steps, int64_t since_ns, trace::TrailSnapshot& trail) {
  constexpr size_t kMost = 24;
  const auto first = std::ranges::lower_bound(steps.ends_ns, since_ns);
  const auto count = static_cast<size_t>(steps.ends_ns.end() - first);
  const size_t in_one = (count + kMost - 1) / kMost;
  for (size_t i = 0; i < count; i += in_one)
    trail.step_ends_ns.push_back(*(steps.ends_ns.end() - 1 - static_cast<std::ptrdiff_t>(i)));
  std::ranges::reverse(trail.step_ends_ns);
  trail.step_ns = steps.usual_ns * static_cast<int64_t>(in_one);
}

}  // namespace

LookBack LookBackTo(const std::vector<Stretch>& stretches, size_t ranks) {
  const double long_ns = LongNs(stretches, ranks), wanted_ns = kLongStretches * long_ns * static_cast<double>(ranks);
  double seen_ns = 0;
  size_t first = stretches.size();
  while (seen_ns < wanted_ns && first > 0) {
    const Stretch& stretch = stretches[--first];
    seen_ns +=
        std::min(static_cast<double>(stretch.ns), 2 * long_ns) * static_cast<double>(stretch.ranks);  // a pause is one
  }
  return {first, seen_ns < wanted_ns ? seen_ns / wanted_ns : 1};
}

void ThinForALook(std::vector<trace::TrailSnapshot>& trails, size_t most) {
  absl::btree_map<uint32_t, std::vector<const trace::TrailSnapshot*>> of_ranks;
  for (const trace::TrailSnapshot& trail : trails) of_ranks[trail.origin.rank].push_back(&trail);
  absl::btree_map<uint32_t, JobSteps> steps;
  for (const auto& [rank, own] : of_ranks) steps[rank] = StepsOf(own);
  std::vector<std::optional<int64_t>> since;
  since.reserve(trails.size());
  std::optional<int64_t> earliest;  // also for those without collectives: what ranks waited for data
  for (const trace::TrailSnapshot& trail : trails) {
    since.push_back(SinceNs(trail, steps[trail.origin.rank]));
    if (since.back()) earliest = std::min(earliest.value_or(*since.back()), *since.back());
  }
  for (size_t i = 0; i < trails.size(); ++i) {
    const int64_t lately = trails[i].taken_ns - ToNanos(kLately).value;
    const int64_t since_ns = since[i].value_or(earliest.value_or(lately));
    if (since[i]) TellSteps(steps[trails[i].origin.rank], since_ns, trails[i]);
    trace::Thin(trails[i], since_ns, most);
  }
}

}  // namespace lockstep::detect
