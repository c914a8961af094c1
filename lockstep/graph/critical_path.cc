#include "lockstep/graph/critical_path.h"

#include <algorithm>
#include <limits>

namespace lockstep::graph {
namespace {

struct Place {
  uint32_t op, lane;
};

class Walk {
 public:
  Walk(const OpGraph& graph, const Durations& durations, const Scenario& scenario, const BlockEnds& ends, size_t set)
      : graph_(graph), durations_(durations), scenario_(scenario), ends_(ends), set_(set) {}

  std::vector<PathOp> Back() {
    std::vector<PathOp> path;
    for (Place at = LastFinal();;) {
      const bool absent = graph_.IsAbsent(graph_.Cell(at.op, at.lane));
      const Place waker = absent ? at : Waker(at);
      if (!absent)
        path.push_back({at.op, waker.op, at.lane, waker.lane, Delay(waker), Start(waker), ends_.At(at.op, at.lane)});
      const auto before = LatestDependency(waker);
      if (before == nullptr) break;
      at = {*before, waker.lane};
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  Place LastFinal() const {
    Place last{};
    double latest = -std::numeric_limits<double>::infinity();
    for (const uint32_t op : graph_.finals)
      for (uint32_t lane = graph_.first_lane[set_]; lane < graph_.first_lane[set_ + 1]; ++lane)
        if (ends_.At(op, lane) > latest) latest = ends_.At(op, lane), last = {op, lane};
    return last;
  }

  const uint32_t* LatestDependency(const Place& place) const {
    const auto before = graph_.DependenciesOf(place.op);
    const auto latest = std::max_element(before.begin(), before.end(), [&](uint32_t a, uint32_t b) {
      return ends_.At(a, place.lane) < ends_.At(b, place.lane);
    });
    return latest == before.end() ? nullptr : &*latest;
  }

  double Delay(const Place& place) const {
    return !durations_.delays.empty() && scenario_.delays.Picks(place.op, place.lane)
               ? static_cast<double>(durations_.delays[graph_.Cell(place.op, place.lane)])
               : 0;
  }
  double Start(const Place& place) const {
    const uint32_t* before = LatestDependency(place);
    return (before == nullptr ? 0 : ends_.At(*before, place.lane)) + Delay(place);
  }

  // The member of the op's group that began last; the op itself outside of groups.
  Place Waker(const Place& place) const {
    const auto unit = std::upper_bound(graph_.units.begin(), graph_.units.end(), place.op,
                                       [](uint32_t op, const Unit& one) { return op < one.first; }) -
                      1;
    if (!unit->synchronised) return place;
    Place last = place;
    double latest = -std::numeric_limits<double>::infinity();
    for (uint32_t op = unit->first; op < unit->first + unit->count; ++op)
      for (uint32_t lane = graph_.first_lane[set_]; lane < graph_.first_lane[set_ + 1]; ++lane) {
        if (!Meet(unit->scope, place.lane, lane) || graph_.IsAbsent(graph_.Cell(op, lane))) continue;
        if (const double start = Start({op, lane}); start > latest) latest = start, last = {op, lane};
      }
    return last;
  }
  bool Meet(Scope scope, uint32_t lane, uint32_t other) const {
    if (scope == Scope::kLane) return lane == other;
    return scope == Scope::kLaneSet || graph_.PartitionOf(scope)[lane] == graph_.PartitionOf(scope)[other];
  }

  const OpGraph& graph_;
  const Durations& durations_;
  const Scenario& scenario_;
  const BlockEnds& ends_;
  const size_t set_;
};

}  // namespace

std::vector<PathOp> CriticalPath(const OpGraph& graph, const Durations& durations, const Scenario& scenario,
                                 const BlockEnds& ends, size_t set) {
  return Walk(graph, durations, scenario, ends, set).Back();
}

}  // namespace lockstep::graph
