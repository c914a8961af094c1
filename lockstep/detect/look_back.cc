#include "lockstep/detect/look_back.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/units.h"

namespace lockstep::detect {
namespace {

// Three for each quarter, one of which its ends may cut off.
constexpr double kLongStretches = 12;
constexpr Seconds kLately{60};

double OfRanksNs(const Stretch& stretch) {
  return static_cast<double>(stretch.ns) * static_cast<double>(stretch.ranks);
}

// Three quarters of the time go by in stretches that are no longer: a checkpoint or an evaluation now and then is.
double LongNs(std::vector<Stretch> stretches) {
  double all_ns = 0, up_to_ns = 0;
  for (const Stretch& stretch : stretches) all_ns += OfRanksNs(stretch);
  std::ranges::sort(stretches, {}, &Stretch::ns);
  for (const Stretch& stretch : stretches)
    if ((up_to_ns += OfRanksNs(stretch)) >= 0.75 * all_ns) return static_cast<double>(stretch.ns);
  return 0;
}

// Twice as far as needed, as ranks tell at different moments, and some are late.
int64_t SinceNs(const trace::TrailSnapshot& trail) {
  std::vector<std::pair<int64_t, Stretch>> ended;  // by time
  for (const ls_record& record : trail.ended) {
    const ls_op_body& op = record.body.op;
    if (record.kind == LS_RECORD_OP && op.number != 0 && op.alone != LS_UNKNOWN)
      ended.push_back({record.time_ns, {ls_delta_ns(op.alone, record.delta_shift)}});
  }
  std::ranges::sort(ended, {}, &std::pair<int64_t, Stretch>::first);
  std::vector<Stretch> stretches;
  stretches.reserve(ended.size());
  for (const auto& [time_ns, stretch] : ended) stretches.push_back(stretch);
  const int64_t lately = trail.taken_ns - ToNanos(kLately).value;
  const size_t first = LookBackTo(stretches, 2).first;
  return first == ended.size() ? lately : std::min(lately, ended[first].first);
}

}  // namespace

LookBack LookBackTo(const std::vector<Stretch>& stretches, size_t ranks) {
  const double wanted_ns = kLongStretches * LongNs(stretches) * static_cast<double>(ranks);
  double seen_ns = 0;
  size_t first = stretches.size();
  while (seen_ns < wanted_ns && first > 0) seen_ns += OfRanksNs(stretches[--first]);
  return {first, seen_ns < wanted_ns ? seen_ns / wanted_ns : 1};
}

void ThinForALook(std::vector<trace::TrailSnapshot>& trails, size_t most) {
  int64_t since =
      std::numeric_limits<int64_t>::max();  // one for all: what a rank waited for data is in a trail of its own
  for (const trace::TrailSnapshot& trail : trails) since = std::min(since, SinceNs(trail));
  for (trace::TrailSnapshot& trail : trails) trace::Thin(trail, since, most);
}

}  // namespace lockstep::detect
