#include "lockstep/graph/replay.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "lockstep/base/check.h"
#include "lockstep/base/parallel.h"

namespace lockstep::graph {
namespace {

constexpr size_t kBlockBytes = 512 << 10;  // of end times: they stay in a core's second cache
constexpr size_t kLeastLanes = 16;

// Lanes [first, first + own) of a scenario. Row `op` of `ends` begins at op * stride, its first lane is `first`. Where
// lanes are replayed each alone, as many columns follow: column own + i stands for all others of lane first + i's set.
struct Block {
  const OpGraph& graph;
  const Durations& durations;
  const Scenario& scenario;
  std::span<const Unit> units;  // to be carried out
  size_t first, own, width;
  std::span<const uint32_t> sets;  // first lanes of the block's sets, and one past the last lane
  double* ends;
  size_t stride;
  double* row;   // scratch, a row
  double* last;  // scratch, a row: when the last member of a group began
};

#define LS_INLINE inline __attribute__((always_inline))

// into[i] = max(into[i], from[i]); written as the instruction has it.
LS_INLINE void Max(double* into, const double* from, size_t count) {
  for (size_t i = 0; i < count; ++i) into[i] = into[i] > from[i] ? into[i] : from[i];
}

LS_INLINE void AddPicked(const Selection& selection, uint32_t op, const float* measured, size_t first, size_t count,
                         double* into) {
  const uint16_t picked = selection.Of(op);
  if (picked == Selection::kNone) return;
  if (picked == Selection::kAll) {
    for (size_t i = 0; i < count; ++i) into[i] += static_cast<double>(measured[i]);
    return;
  }
  const uint8_t* mask = selection.Mask(picked) + first;
  for (size_t i = 0; i < count; ++i) into[i] += mask[i] != 0 ? static_cast<double>(measured[i]) : 0.0;
}

// into[i] = from[i] + the duration of the op in that lane.
LS_INLINE void AddDuration(const Block& block, uint32_t op, const float* measured, const double* from, double* into) {
  const uint16_t picked = block.scenario.durations.Of(op);
  const double ideal = block.durations.ideal[op];
  if (picked == Selection::kNone) {
    for (size_t i = 0; i < block.own; ++i) into[i] = from[i] + ideal;
  } else if (picked == Selection::kAll) {
    for (size_t i = 0; i < block.own; ++i) into[i] = from[i] + static_cast<double>(measured[i]);
  } else {
    const uint8_t* mask = block.scenario.durations.Mask(picked) + block.first;
    for (size_t i = 0; i < block.own; ++i)
      into[i] = from[i] + (mask[i] != 0 ? static_cast<double>(measured[i]) : ideal);
  }
  for (size_t i = block.own; i < block.width; ++i) into[i] = from[i] + ideal;
}

LS_INLINE void Start(const Block& block, uint32_t op, size_t place, double* start) {
  const std::span<const uint32_t> before = block.graph.DependenciesOf(op);
  if (before.empty()) {
    std::fill_n(start, block.width, 0.0);
  } else {
    std::copy_n(block.ends + before[0] * block.stride, block.width, start);
    for (size_t i = 1; i < before.size(); ++i) Max(start, block.ends + before[i] * block.stride, block.width);
  }
  if (!block.durations.delays.empty())
    AddPicked(block.scenario.delays, op, block.durations.delays.data() + place, block.first, block.own, start);
}

LS_INLINE void CarryOutAlone(const Block& block, uint32_t op, size_t place) {
  double* end = block.ends + op * block.stride;
  Start(block, op, place, block.row);
  AddDuration(block, op, block.durations.measured.data() + place, block.row, end);
}

// Which lanes of the block lack an op; null: none does.
LS_INLINE const uint8_t* AbsentOf(const Block& block, size_t place) {
  return block.graph.absent.empty() ? nullptr : block.graph.absent.data() + place;
}

LS_INLINE void CarryOut(const Block& block, const Unit& unit, size_t lanes) {
  std::fill_n(block.last, block.width, -std::numeric_limits<double>::infinity());
  for (uint32_t op = unit.first; op < unit.first + unit.count; ++op) {
    double* start = block.ends + op * block.stride;  // the end will be put in its place
    const size_t place = op * lanes + block.first;
    Start(block, op, place, start);
    if (const uint8_t* absent = AbsentOf(block, place)) {
      for (size_t i = 0; i < block.width; ++i)
        block.last[i] = absent[i] == 0 && start[i] > block.last[i] ? start[i] : block.last[i];
    } else {
      Max(block.last, start, block.width);
    }
  }
  if (block.own == block.width) {
    SpreadLargest<double>(block.graph, unit.scope, block.first, block.sets, {block.last, block.width}, block.row);
  } else if (unit.scope == Scope::kLaneSet) {
    Max(block.last, block.last + block.own, block.own);
    std::copy_n(block.last, block.own, block.last + block.own);
  }
  for (uint32_t op = unit.first; op < unit.first + unit.count; ++op) {
    double* end = block.ends + op * block.stride;
    const size_t place = op * lanes + block.first;
    if (const uint8_t* absent = AbsentOf(block, place)) {
      AddDuration(block, op, block.durations.measured.data() + place, block.last, block.row);
      for (size_t i = 0; i < block.width; ++i) end[i] = absent[i] != 0 ? end[i] : block.row[i];
    } else {
      AddDuration(block, op, block.durations.measured.data() + place, block.last, end);
    }
  }
}

// A row's part that the block needs is short, and in a large graph each lies on a page of its own: no processor
// foresees it.
LS_INLINE void Prefetch(const Block& block, uint32_t op, size_t lanes) {
  constexpr size_t kLine = 64 / sizeof(float), kPage = 4096 / sizeof(float);
  if (lanes < kPage || op >= block.graph.ops() || block.scenario.durations.Of(op) == Selection::kNone) return;
  const float* measured = block.durations.measured.data() + op * lanes + block.first;
  for (size_t i = 0; i < block.own; i += kLine) __builtin_prefetch(measured + i);
}

LS_INLINE void CarryOutAll(const Block& block) {
  constexpr uint32_t kAhead = 8;  // ops
  const size_t lanes = block.graph.lanes();
  for (const Unit& unit : block.units) {
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op) Prefetch(block, op + kAhead, lanes);
    const size_t place = unit.first * lanes + block.first;
    if (unit.synchronised) {
      CarryOut(block, unit, lanes);
    } else if (const uint8_t* absent = AbsentOf(block, place)) {
      CarryOutAlone(block, unit.first, place);
      double* end = block.ends + unit.first * block.stride;
      for (size_t i = 0; i < block.width; ++i) end[i] = absent[i] != 0 ? block.row[i] : end[i];
    } else {
      CarryOutAlone(block, unit.first, place);
    }
  }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) void CarryOutAvx2(const Block& block) { CarryOutAll(block); }
#endif
void CarryOutPlain(const Block& block) { CarryOutAll(block); }

void Dispatch(const Block& block) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return CarryOutAvx2(block);
#endif
  CarryOutPlain(block);
}

}  // namespace

Replay::Replay(const OpGraph& graph, const Durations& durations) : graph_(graph), durations_(durations) {
  const size_t cells = graph.ops() * graph.lanes();
  LS_CHECK(durations.measured.size() == cells, "{} durations for {}", durations.measured.size(), cells);
  LS_CHECK(durations.delays.empty() || durations.delays.size() == cells, "{} delays for {}", durations.delays.size(),
           cells);
  LS_CHECK(durations.ideal.size() == graph.ops(), "{} ideal durations for {} ops", durations.ideal.size(), graph.ops());
  const size_t wanted = std::max(kLeastLanes, kBlockBytes / sizeof(double) / std::max<size_t>(graph.ops(), 1));
  first_set_.push_back(0);
  for (uint32_t set = 1; set <= graph.lane_sets(); ++set) {
    const size_t lanes = graph.first_lane[set] - graph.first_lane[first_set_.back()];
    const bool last = set == graph.lane_sets();
    if (!last && graph.first_lane[set + 1] - graph.first_lane[first_set_.back()] <= wanted) continue;
    widest_ = std::max(widest_, lanes);
    first_set_.push_back(set);
  }
}

void Replay::RunBlock(size_t block, const Scenario& scenario, std::span<const Unit> units, Scratch& scratch,
                      double* ends, size_t stride) const {
  scratch.rows.resize(2 * widest_);
  const uint32_t begin = first_set_[block], end = first_set_[block + 1];
  const size_t first = graph_.first_lane[begin], width = graph_.first_lane[end] - first;
  const std::span<const uint32_t> sets{graph_.first_lane.data() + begin, end - begin + 1U};
  Dispatch({graph_, durations_, scenario, units, first, width, width, sets, ends, stride, scratch.rows.data(),
            scratch.rows.data() + widest_});
}

BlockEnds Replay::RunBlock(size_t block, const Scenario& scenario, std::span<const Unit> units,
                           Scratch& scratch) const {
  scratch.ends.resize(graph_.ops() * widest_);
  RunBlock(block, scenario, units, scratch, scratch.ends.data(), widest_);
  return {first_set_[block], first_set_[block + 1], graph_.first_lane[first_set_[block]], scratch.ends.data(), widest_};
}

bool Replay::CanReplayLanesAlone() const {
  for (size_t set = 0; set < graph_.lane_sets(); ++set)
    if (graph_.first_lane[set + 1] - graph_.first_lane[set] < 2) return false;
  return graph_.absent.empty() && graph_.partitions.empty();
}

void Replay::AloneTimes(const Selection& durations, Scratch& scratch, std::span<double> times) const {
  LS_CHECK(CanReplayLanesAlone(), "other lanes of a set are not alike");
  const Scenario scenario{durations, Selection(graph_.ops(), Selection::kNone)};
  const size_t most = widest_ / 2;  // at least 1, since a set has two lanes
  scratch.ends.resize(graph_.ops() * widest_);
  scratch.rows.resize(2 * widest_);
  for (size_t first = 0; first < graph_.lanes(); first += most) {
    const size_t own = std::min(most, graph_.lanes() - first);
    Dispatch({graph_,
              durations_,
              scenario,
              graph_.units,
              first,
              own,
              2 * own,
              {},
              scratch.ends.data(),
              widest_,
              scratch.rows.data(),
              scratch.rows.data() + widest_});
    for (size_t i = 0; i < own; ++i) {
      double& time = times[first + i] = -std::numeric_limits<double>::infinity();
      for (const uint32_t op : graph_.finals) {
        const double* ends = scratch.ends.data() + op * widest_;
        time = std::max({time, ends[i], ends[own + i]});
      }
    }
  }
}

void Replay::VisitBlocks(const Scenario& scenario, Scratch& scratch,
                         const std::function<void(const BlockEnds&)>& visit) const {
  for (size_t block = 0; block + 1 < first_set_.size(); ++block)
    visit(RunBlock(block, scenario, graph_.units, scratch));
}

void Replay::TakeTimes(const BlockEnds& block, std::span<double> times) const {
  for (size_t set = block.first_set; set < block.last_set; ++set) {
    times[set] = -std::numeric_limits<double>::infinity();
    for (const uint32_t op : graph_.finals)
      for (size_t lane = graph_.first_lane[set]; lane < graph_.first_lane[set + 1]; ++lane)
        times[set] = std::max(times[set], block.At(op, lane));
  }
}

void Replay::SetTimes(const Scenario& scenario, std::span<Scratch> scratches, std::span<double> times) const {
  ParallelFor(first_set_.size() - 1, scratches.size(), [&](size_t block, size_t worker) {
    TakeTimes(RunBlock(block, scenario, graph_.units, scratches[worker]), times);
  });
}

size_t Replay::FirstDifference(const Scenario& a, const Scenario& b) const {
  // Names of masks mean something within a selection only.
  const auto same = [](const Selection& one, const Selection& other, uint32_t op) {
    return one.Of(op) == other.Of(op) && one.Of(op) <= Selection::kAll;
  };
  const auto differs = [&](const Unit& unit) {
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
      if (!same(a.durations, b.durations, op) || !same(a.delays, b.delays, op)) return true;
    return false;
  };
  return static_cast<size_t>(std::find_if(graph_.units.begin(), graph_.units.end(), differs) - graph_.units.begin());
}

void Replay::SetTimesOfEach(const Scenario& base, std::span<const Scenario> scenarios, std::span<Scratch> scratches,
                            std::span<std::vector<double>> times) const {
  std::vector<std::pair<size_t, size_t>> order;  // where it begins to differ, and which it is
  order.reserve(scenarios.size());
  for (size_t i = 0; i < scenarios.size(); ++i) order.emplace_back(FirstDifference(base, scenarios[i]), i);
  // The latest first: what it leaves behind, the next one carries out anew.
  std::sort(order.begin(), order.end(), std::greater<>());
  if (order.empty()) return;
  const std::span<const Unit> units = graph_.units;
  ParallelFor(first_set_.size() - 1, scratches.size(), [&](size_t block, size_t worker) {
    RunBlock(block, base, units.first(order.front().first), scratches[worker]);
    for (const auto& [from, i] : order)
      TakeTimes(RunBlock(block, scenarios[i], units.subspan(from), scratches[worker]), times[i]);
  });
}

void Replay::Ends(const Scenario& scenario, Scratch& scratch, std::span<double> ends) const {
  for (size_t block = 0; block + 1 < first_set_.size(); ++block)
    RunBlock(block, scenario, graph_.units, scratch, ends.data() + graph_.first_lane[first_set_[block]],
             graph_.lanes());
}

}  // namespace lockstep::graph
