#include "lockstep/graph/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "lockstep/graph/critical_path.h"

namespace lockstep::graph {
namespace {

using testing::ElementsAre;

std::string Number(uint32_t op) { return std::to_string(op); }

// end(v) as op_graph.h defines it, op by op and lane by lane: the slow way, to hold the kernel against.
std::vector<double> ByDefinition(const OpGraph& graph, const Durations& durations, const Scenario& scenario) {
  const size_t lanes = graph.lanes();
  std::vector<double> ends(graph.ops() * lanes);
  const auto picks = [&](const Selection& selection, uint32_t op, size_t lane) {
    const uint16_t picked = selection.Of(op);
    return picked == Selection::kAll || (picked != Selection::kNone && selection.Mask(picked)[lane] != 0);
  };
  const auto absent = [&](uint32_t op, size_t lane) {
    return !graph.absent.empty() && graph.absent[op * lanes + lane] != 0;
  };
  const auto start = [&](uint32_t op, size_t lane) {
    double at = graph.DependenciesOf(op).empty() ? 0 : -1e9;
    for (const uint32_t before : graph.DependenciesOf(op)) at = std::max(at, ends[before * lanes + lane]);
    return at + (picks(scenario.delays, op, lane) ? static_cast<double>(durations.delays[op * lanes + lane]) : 0.0);
  };
  const auto set_of = [&](size_t lane) {
    return std::upper_bound(graph.first_lane.begin(), graph.first_lane.end(), lane) - graph.first_lane.begin() - 1;
  };
  for (const Unit& unit : graph.units)
    for (size_t lane = 0; lane < lanes; ++lane)
      for (uint32_t op = unit.first; op < unit.first + unit.count; ++op) {
        double begin = start(op, lane);
        if (absent(op, lane)) {
          ends[op * lanes + lane] = begin;
          continue;
        }
        for (uint32_t peer = unit.first; peer < unit.first + unit.count; ++peer)
          for (size_t other = 0; other < lanes; ++other) {
            bool waits = other == lane;
            if (unit.scope == Scope::kLaneSet) waits = set_of(other) == set_of(lane);
            if (unit.scope >= Scope::kPartition)
              waits = graph.PartitionOf(unit.scope)[other] == graph.PartitionOf(unit.scope)[lane];
            if (unit.synchronised && waits && !absent(peer, other)) begin = std::max(begin, start(peer, other));
          }
        const double duration = picks(scenario.durations, op, lane)
                                    ? static_cast<double>(durations.measured[op * lanes + lane])
                                    : durations.ideal[op];
        ends[op * lanes + lane] = begin + duration;
      }
  return ends;
}

// Two stages in two data-parallel lanes: compute a, transfer (b, c) to compute d, all-reduce e over the lanes.
struct Pipeline {
  Pipeline() {
    for (int i = 0; i < 5; ++i) builder.AddOp();
    builder.AddDependency(0, 1);
    builder.AddDependency(2, 3);
    builder.AddDependency(3, 4);
    builder.AddGroup({1, 2}, Scope::kLane);
    builder.AddGroup({4}, Scope::kLaneSet);
    builder.AddFinal(4);
    graph = builder.Build({0, 2}, Number).value().graph;
  }
  OpGraphBuilder builder;
  OpGraph graph;
};

TEST(Replay, AGroupEndsBehindItsLastMember) {
  const Pipeline job;
  // a: 3, 1; b and c: 1; d: 2, 2; e: 0.5
  const std::vector<float> measured = {3, 1, 1, 1, 1, 1, 2, 2, 0.5, 0.5};
  const std::vector<double> ideal = {2, 1, 1, 2, 0.5};
  const Replay replay(job.graph, {measured, {}, ideal});
  Replay::Scratch scratch;
  std::vector<double> ends(10), times(1);
  const Scenario as_measured{Selection(5, Selection::kAll), Selection(5, Selection::kNone)};
  replay.Ends(as_measured, scratch, ends);
  EXPECT_THAT(ends, ElementsAre(3, 1, 4, 2, 4, 2, 6, 4, 6.5, 6.5));
  replay.SetTimes({Selection(5, Selection::kNone), Selection(5, Selection::kNone)}, scratch, times);
  EXPECT_EQ(times[0], 2 + 1 + 2 + 0.5);
  Selection first_lane(5, Selection::kNone);
  first_lane.Set(0, first_lane.AddMask({1, 0}));
  replay.SetTimes({first_lane, Selection(5, Selection::kNone)}, scratch, times);
  EXPECT_EQ(times[0], 3 + 1 + 2 + 0.5);
}

TEST(CriticalPath, GoesThroughTheLastOfAGroup) {
  const Pipeline job;
  const std::vector<float> measured = {3, 1, 1, 1, 1, 1, 2, 2, 0.5, 0.5};
  const std::vector<double> ideal = {2, 1, 1, 2, 0.5};
  const Durations durations{measured, {}, ideal};
  const Scenario as_measured{Selection(5, Selection::kAll), Selection(5, Selection::kNone)};
  const Replay replay(job.graph, durations);
  Replay::Scratch scratch;
  std::vector<std::pair<uint32_t, uint32_t>> places;
  replay.VisitBlocks(as_measured, scratch, [&](const BlockEnds& block) {
    for (const PathOp& one : CriticalPath(job.graph, durations, as_measured, block, 0))
      places.emplace_back(one.op, one.lane);
  });
  using P = std::pair<uint32_t, uint32_t>;
  EXPECT_THAT(places, ElementsAre(P(0, 0), P(2, 0), P(3, 0), P(4, 0))) << "not the second lane, which waits in op 4";
}

TEST(Replay, WhoIsAbsentKeepsNobodyWaiting) {
  Pipeline job;
  job.graph.absent.assign(10, 0);
  job.graph.absent[0] = job.graph.absent[2] = 1;  // a and b in the first lane
  const std::vector<float> measured = {0, 1, 0, 1, 1, 1, 2, 2, 0.5, 0.5};
  const std::vector<double> ideal = {2, 1, 1, 2, 0.5};
  const Replay replay(job.graph, {measured, {}, ideal});
  Replay::Scratch scratch;
  std::vector<double> ends(10);
  replay.Ends({Selection(5, Selection::kAll), Selection(5, Selection::kNone)}, scratch, ends);
  EXPECT_THAT(ends, ElementsAre(0, 1, 0, 2, 1, 2, 3, 4, 4.5, 4.5));
}

// Without a gap, of ops as long as the scenario has them.
void ExpectPathTo(double time, const std::vector<PathOp>& path, const OpGraph& graph, const Durations& durations,
                  const Scenario& scenario) {
  double at = 0;
  for (const PathOp& one : path) {
    const size_t cell = graph.Cell(one.op, one.lane);
    ASSERT_FALSE(graph.IsAbsent(cell));
    if (graph.absent.empty()) {
      ASSERT_DOUBLE_EQ(one.begin, at + one.delay);
    }
    ASSERT_NEAR(one.end - one.begin,
                scenario.durations.Picks(one.op, one.lane) ? static_cast<double>(durations.measured[cell])
                                                           : durations.ideal[one.op],
                1e-9);
    at = one.end;
  }
  if (graph.absent.empty()) {  // here absent ops may have delays, which belong to nobody
    ASSERT_DOUBLE_EQ(at, time);
  }
}

// A lane that alone is as measured, against a scenario that says so.
void ExpectAlone(const Replay& replay, const OpGraph& graph, const Selection& picked) {
  const auto ops = static_cast<uint32_t>(graph.ops());
  Replay::Scratch scratch;
  std::vector<double> alone(graph.lanes()), times(graph.lane_sets());
  replay.AloneTimes(picked, scratch, alone);
  for (size_t set = 0; set < graph.lane_sets(); ++set)
    for (size_t lane = graph.first_lane[set]; lane < graph.first_lane[set + 1]; ++lane) {
      std::vector<uint8_t> mask(graph.lanes());
      mask[lane] = 1;
      Selection of_lane(ops, Selection::kNone);
      const uint16_t name = of_lane.AddMask(std::move(mask));
      for (uint32_t op = 0; op < ops; ++op)
        if (picked.Picks(op, lane)) of_lane.Set(op, name);
      replay.SetTimes({of_lane, Selection(ops, Selection::kNone)}, scratch, times);
      ASSERT_EQ(alone[lane], times[set]);
    }
}

class RandomGraphs : public testing::TestWithParam<int> {};

TEST_P(RandomGraphs, AreReplayedAsDefined) {
  std::mt19937 chance(static_cast<unsigned>(GetParam()));
  const auto below = [&](size_t limit) { return static_cast<uint32_t>(chance() % limit); };
  const uint32_t ops = 5 + below(40);
  OpGraphBuilder builder;
  for (uint32_t op = 0; op < ops; ++op) {
    builder.AddOp();
    for (uint32_t i = below(4); op > 0 && i > 0; --i) builder.AddDependency(below(op), op);
  }
  // Members of a group must not wait for each other, not even through others: single ops, or ops without dependencies.
  std::vector<uint32_t> first_lane = {0};
  const uint32_t fewest = GetParam() % 3 == 0 ? 2 : 1;  // lanes of a set
  for (uint32_t set = 1 + below(50); set > 0; --set) first_lane.push_back(first_lane.back() + fewest + below(5));
  Partition partition;
  for (size_t set = 0; set + 1 < first_lane.size(); ++set)
    for (uint32_t lane = first_lane[set]; lane < first_lane[set + 1]; ++lane)
      partition.push_back(lane > first_lane[set] && below(2) == 0 ? partition.back() : lane);
  std::vector<Scope> scopes = {Scope::kLane, Scope::kLaneSet};
  if (fewest == 1) scopes.push_back(builder.AddPartition(partition));
  for (uint32_t op = 0; op < ops; op += 1 + below(6)) builder.AddGroup({op}, scopes[below(scopes.size())]);
  builder.AddFinal(ops - 1);
  OpGraph graph = builder.Build(first_lane, Number).value().graph;
  const size_t cells = graph.ops() * graph.lanes();
  std::vector<float> measured(cells), delays(cells);
  std::vector<double> ideal(ops);
  for (float& one : measured) one = static_cast<float>(below(1000)) / 100;
  for (float& one : delays) one = static_cast<float>(below(100)) / 100 - 0.1F;
  for (double& one : ideal) one = below(1000) / 100.0;
  if (fewest == 1 && below(2) == 0)
    for (size_t cell = 0; cell < cells; ++cell) graph.absent.push_back(below(10) == 0 ? 1 : 0);
  const auto random_selection = [&] {
    Selection picked(ops, Selection::kNone);
    std::vector<uint8_t> mask;
    mask.reserve(graph.lanes());
    for (size_t lane = 0; lane < graph.lanes(); ++lane) mask.push_back(static_cast<uint8_t>(below(2)));
    const uint16_t name = picked.AddMask(mask);
    for (uint32_t op = 0; op < ops; ++op)
      picked.Set(op, std::array<uint16_t, 3>{Selection::kNone, Selection::kAll, name}[below(3)]);
    return picked;
  };
  const Durations durations{measured, delays, ideal};
  const Replay replay(graph, durations);
  Replay::Scratch scratch;
  const Scenario scenario{random_selection(), random_selection()};
  std::vector<double> ends(cells), times(graph.lane_sets());
  replay.Ends(scenario, scratch, ends);
  const std::vector<double> expected = ByDefinition(graph, durations, scenario);
  for (size_t cell = 0; cell < cells; ++cell) ASSERT_DOUBLE_EQ(ends[cell], expected[cell]) << cell;
  replay.SetTimes(scenario, scratch, times);
  for (size_t set = 0; set < times.size(); ++set) {
    double last = -1e9;
    for (size_t lane = graph.first_lane[set]; lane < graph.first_lane[set + 1]; ++lane)
      last = std::max(last, expected[graph.finals[0] * graph.lanes() + lane]);
    ASSERT_DOUBLE_EQ(times[set], last);
  }
  // Of several at once, each from where it differs: the same bits.
  const Scenario base{{ops, Selection::kAll}, {ops, Selection::kNone}};
  std::vector<Scenario> several = {scenario, base, {random_selection(), base.delays}, base};
  several.back().durations.Set(below(ops), Selection::kNone);
  several.back().delays.Set(ops - 1, Selection::kAll);
  std::vector<std::vector<double>> each(several.size(), times);
  std::array<Replay::Scratch, 2> scratches;
  replay.SetTimesOfEach(base, several, scratches, each);
  for (size_t i = 0; i < several.size(); ++i) {
    std::vector<double> by_itself(times.size());
    replay.SetTimes(several[i], scratch, by_itself);
    ASSERT_EQ(each[i], by_itself) << i;
  }
  replay.VisitBlocks(scenario, scratch, [&](const BlockEnds& block) {
    for (size_t set = block.first_set; set < block.last_set; ++set)
      ExpectPathTo(times[set], CriticalPath(graph, durations, scenario, block, set), graph, durations, scenario);
  });
  ASSERT_EQ(replay.CanReplayLanesAlone(), fewest == 2);
  if (fewest == 2) ExpectAlone(replay, graph, scenario.durations);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphs, testing::Range(0, 200));

}  // namespace
}  // namespace lockstep::graph
