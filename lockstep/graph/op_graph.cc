#include "lockstep/graph/op_graph.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "lockstep/base/check.h"

namespace lockstep::graph {
namespace {

constexpr size_t kMaxNamed = 8;  // ops of a cycle in a message

// Lists of numbers, one behind the other.
struct Lists {
  std::vector<uint32_t> first = {0}, all;
  size_t size() const { return first.size() - 1; }
  std::span<const uint32_t> operator[](size_t list) const {
    return {all.data() + first[list], all.data() + first[list + 1]};
  }
};

// `each` calls what it is given with (list, value), of all values, the same each time; a list keeps their order.
template <typename Each>
Lists Collect(size_t lists, const Each& each) {
  Lists made;
  made.first.assign(lists + 1, 0);
  each([&](uint32_t list, uint32_t) { ++made.first[list + 1]; });
  std::partial_sum(made.first.begin(), made.first.end(), made.first.begin());
  made.all.resize(made.first.back());
  std::vector<uint32_t> next(made.first.begin(), made.first.end() - 1);
  each([&](uint32_t list, uint32_t value) { made.all[next[list]++] = value; });
  return made;
}

// The graph of units: an op alone, or a group as one.
struct Units {
  Lists members;
  std::vector<Scope> scopes;
  std::vector<bool> synchronised;
  std::vector<uint32_t> of_op;
};

void Append(Units& units, std::span<const uint32_t> members, bool synchronised, Scope scope) {
  for (const uint32_t op : members) units.of_op[op] = static_cast<uint32_t>(units.members.size());
  units.members.all.insert(units.members.all.end(), members.begin(), members.end());
  units.members.first.push_back(static_cast<uint32_t>(units.members.all.size()));
  units.synchronised.push_back(synchronised);
  units.scopes.push_back(scope);
}

Units EachAlone(uint32_t ops) {
  Units units;
  units.of_op.resize(ops), units.members.first.resize(size_t{ops} + 1);
  std::iota(units.of_op.begin(), units.of_op.end(), 0U);
  std::iota(units.members.first.begin(), units.members.first.end(), 0U);
  units.members.all = units.of_op;
  units.scopes.assign(ops, Scope::kLane), units.synchronised.assign(ops, false);
  return units;
}

// The groups, and then what is in none.
template <typename Groups>
absl::StatusOr<Units> UnitsOf(uint32_t ops, const Groups& groups, const OpGraphBuilder::Namer& name) {
  if (groups.empty()) return EachAlone(ops);
  constexpr uint32_t kNone = ~0U;
  Units units;
  units.of_op.assign(ops, kNone);
  units.members.all.reserve(ops), units.members.first.reserve(size_t{ops} + 1);
  units.scopes.reserve(ops), units.synchronised.reserve(ops);
  for (const auto& group : groups) {
    for (const uint32_t op : group.members)
      if (units.of_op[op] != kNone) return InvalidArgument("{} is in two groups", name(op));
    Append(units, group.members, true, group.scope);
  }
  for (uint32_t op = 0; op < ops; ++op)
    if (units.of_op[op] == kNone) Append(units, {&op, 1}, false, Scope::kLane);
  return units;
}

// Units that wait for none, and then each as soon as those are done that it waits for. `open`: for how many each waits;
// of one that is never done, above 0.
std::vector<uint32_t> InOrder(const Lists& before, std::vector<uint32_t>& open) {
  const Lists behind = Collect(before.size(), [&](const auto& visit) {
    for (uint32_t unit = 0; unit < before.size(); ++unit)
      for (const uint32_t other : before[unit]) visit(other, unit);
  });
  std::vector<uint32_t> order;
  order.reserve(before.size());
  for (uint32_t unit = 0; unit < before.size(); ++unit) {
    open[unit] = static_cast<uint32_t>(before[unit].size());
    if (open[unit] == 0) order.push_back(unit);
  }
  for (size_t done = 0; done < order.size(); ++done)  // `order` grows meanwhile
    for (const uint32_t unit : behind[order[done]])
      if (--open[unit] == 0) order.push_back(unit);
  return order;
}

// "a, b, c wait for each other in a circle".
std::string Circle(const std::vector<uint32_t>& cycle, const Units& units, const OpGraphBuilder::Namer& name) {
  std::string text;
  for (size_t i = 0; i < std::min(cycle.size(), kMaxNamed); ++i)
    text += (i == 0 ? "" : ", ") + name(units.members[cycle[i]].front());
  if (cycle.size() > kMaxNamed) text += fmt::format(" and {} more", cycle.size() - kMaxNamed);
  return text;
}

// The units that wait for each other, out of those that are left when no other can be carried out.
std::vector<uint32_t> FindCycle(const Lists& before, const std::vector<uint32_t>& open) {
  const auto first = std::find_if(open.begin(), open.end(), [](uint32_t count) { return count > 0; });
  std::vector<uint32_t> path, place(open.size(), 0);
  auto at = static_cast<uint32_t>(first - open.begin());
  while (place[at] == 0) {
    path.push_back(at);
    place[at] = static_cast<uint32_t>(path.size());
    at = *std::ranges::find_if(before[at], [&](uint32_t unit) { return open[unit] > 0; });
  }
  return {path.begin() + place[at] - 1, path.end()};
}

}  // namespace

absl::Status OpGraph::Validate() const {
  uint32_t next = 0;
  for (const Unit& unit : units) {
    if (unit.first != next || unit.count == 0)
      return InvalidArgument("unit of op {} does not follow op {}", unit.first, next);
    if (unit.count > 1 && !unit.synchronised)
      return InvalidArgument("the {} ops from {} are no group", unit.count, unit.first);
    next += unit.count;
    for (uint32_t op = unit.first; op < next; ++op)
      for (const uint32_t before : DependenciesOf(op))
        if (before >= unit.first)
          return InvalidArgument("op {} waits for {}, which does not come before it", op, before);
  }
  if (next != ops()) return InvalidArgument("{} of {} ops are in units", next, ops());
  for (const uint32_t op : finals)
    if (op >= ops()) return InvalidArgument("the final op {} is none of {}", op, ops());
  if (first_lane.size() < 2 || first_lane.front() != 0 || !std::is_sorted(first_lane.begin(), first_lane.end()))
    return InvalidArgument("lane sets must cover the lanes from 0 in order");
  for (const Partition& partition : partitions) {
    if (partition.size() != lanes())
      return InvalidArgument("a partition of {} lanes for {}", partition.size(), lanes());
    for (size_t set = 0; set < lane_sets(); ++set)
      for (uint32_t lane = first_lane[set]; lane < first_lane[set + 1]; ++lane)
        if (partition[lane] > lane || partition[lane] < first_lane[set] ||
            partition[partition[lane]] != partition[lane])
          return InvalidArgument("lane {} is in the part of lane {}, which does not begin one", lane, partition[lane]);
  }
  return absl::OkStatus();
}

absl::StatusOr<OpGraphBuilder::Built> OpGraphBuilder::Build(std::vector<uint32_t> first_lane, const Namer& name) const {
  if (size_t{ops()} * first_lane.back() >= ~0U)
    return InvalidArgument("{} ops in {} lanes are too many: a graph has fewer than 2^32 of both together", ops(),
                           first_lane.back());
  LS_ASSIGN_OR_RETURN(const Units units, UnitsOf(ops(), groups_, name));
  const Lists waits_for = Collect(ops(), [&](const auto& visit) {
    for (const Dependency& one : dependencies_) visit(one.after, one.before);
  });
  const auto between_units = [&](const auto& visit) {
    for (uint32_t op = 0; op < ops(); ++op)
      for (const uint32_t other : waits_for[op]) visit(units.of_op[op], units.of_op[other]);
  };
  const Lists of_groups = groups_.empty() ? Lists{} : Collect(units.members.size(), between_units);
  const Lists& before = groups_.empty() ? waits_for : of_groups;
  std::vector<uint32_t> open(units.members.size());
  const std::vector<uint32_t> order = InOrder(before, open);
  if (order.size() < units.members.size())
    return InvalidArgument("these ops wait for each other in a circle: {}",
                           Circle(FindCycle(before, open), units, name));

  Built built;
  built.number.assign(ops(), 0);
  built.graph.units.reserve(order.size());
  uint32_t next = 0;
  for (const uint32_t unit : order) {
    built.graph.units.push_back(
        {next, static_cast<uint32_t>(units.members[unit].size()), units.synchronised[unit], units.scopes[unit]});
    for (const uint32_t op : units.members[unit]) built.number[op] = next++;
  }
  std::vector<uint32_t> added(ops());  // the inverse of number
  for (uint32_t op = 0; op < ops(); ++op) added[built.number[op]] = op;
  built.graph.dependencies.reserve(dependencies_.size());
  built.graph.first_dependency.reserve(size_t{ops()} + 1);
  built.graph.first_dependency.push_back(0);
  for (const uint32_t op : added) {
    for (const uint32_t other : waits_for[op]) built.graph.dependencies.push_back(built.number[other]);
    built.graph.first_dependency.push_back(static_cast<uint32_t>(built.graph.dependencies.size()));
  }
  for (const uint32_t op : finals_) built.graph.finals.push_back(built.number[op]);
  built.graph.first_lane = std::move(first_lane);
  built.graph.partitions = partitions_;
  LS_RETURN_IF_ERROR(built.graph.Validate());
  return built;
}

}  // namespace lockstep::graph
