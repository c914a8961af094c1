#include "lockstep/explain/steady_segments.h"

#include <algorithm>

#include "lockstep/base/median.h"
#include "lockstep/explain/pass_times.h"

namespace lockstep::explain {
namespace {

constexpr double kLong = 1.2;  // times the rest of its lane, and itself in most steps

struct Segment {
  double relative, usual;  // to what is usual; what that is, s
  uint32_t op;
};

}  // namespace

SteadySegments::SteadySegments(const Passes& passes, int stage, int dp) : passes_(passes) {
  const std::vector<uint32_t>& ops = passes.Ops(0, stage);
  for (const uint32_t op : ops) of_op_[op] = Ratio(passes, op, passes.LanesOf(dp)), FindUsuallyIdle(op, dp);
  for (const size_t lane : passes.LanesOf(dp)) FindPaused(ops, lane);
}

double SteadySegments::Seconds(uint32_t op, size_t lane) const {
  const auto found = paused_.find(passes_.job().graph.Cell(op, lane));
  return found == paused_.end() ? passes_.Duration(op, lane) : found->second;
}

void SteadySegments::FindUsuallyIdle(uint32_t op, int dp) {
  std::vector<double> idle;
  for (const size_t lane : passes_.LanesOf(dp))
    if (passes_.Has(op, lane)) idle.push_back(Idle(op, lane));
  usually_idle_[op] = Median(std::move(idle));
}

double SteadySegments::Idle(uint32_t op, size_t lane) const {
  return static_cast<double>(trace::IdleOf(passes_.job(), passes_.job().graph.Cell(op, lane)));
}

// Against the median, by time, of the others of the lane, which several pauses do not move. If half of them are long it
// is the lane that is slow. A pause of the host is a gap between kernels; kernels that are long are the device's.
void SteadySegments::FindPaused(const std::vector<uint32_t>& ops, size_t lane) {
  std::vector<Segment> segments;
  for (const uint32_t op : ops)
    if (passes_.Has(op, lane) && passes_.Usual(op, lane) > 0)
      segments.push_back({passes_.Relative(op, lane), passes_.Usual(op, lane), op});
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return a.relative != b.relative ? a.relative < b.relative : a.op < b.op;
  });
  std::vector<double> up_to;  // s, usual
  for (const Segment& segment : segments) up_to.push_back(segment.usual + (up_to.empty() ? 0 : up_to.back()));
  std::vector<std::pair<size_t, double>> paused;
  for (size_t i = segments.size(); i-- > 1;) {  // from the longest on
    const Segment& one = segments[i];
    const auto middle = std::lower_bound(up_to.begin(), up_to.end(), (up_to.back() - one.usual) / 2) - up_to.begin();
    const double others = segments[static_cast<size_t>(middle)].relative;
    if (one.relative < kLong * others) break;
    const double steady = std::max(others, of_op_.at(one.op));
    if (one.relative < kLong * steady) continue;
    const double gaps = std::max(0.0, Idle(one.op, lane) - usually_idle_.at(one.op));
    paused.emplace_back(passes_.job().graph.Cell(one.op, lane),
                        std::max(steady * one.usual, passes_.Duration(one.op, lane) - gaps));
  }
  if (2 * paused.size() < segments.size()) paused_.insert(paused.begin(), paused.end());
}

}  // namespace lockstep::explain
