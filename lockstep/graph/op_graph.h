// OpGraph: the ops of a job and what each of them waits for, so that its time can be computed anew with other
// durations.
//
// A graph is a template of ops that many lanes share. For a pipelined job a lane is one data-parallel rank in one step,
// with the ops of all stages; the lanes of a step form a lane set. An op waits for its dependencies in its own lane.
// The members of a sync group (a collective, a send and its receive) transfer together: none ends before the last of
// them has begun.
//
//   start(v) = max over dependencies u of end(u), 0 without any, + delay(v)
//   end(v)   = start(v) + duration(v)                       outside of groups
//   end(v)   = max over group members m of start(m) + duration(v)    in a group; over all lanes of the set, or of a
//   part of it, if so scoped
//
// Invariants (Validate): ops are numbered in the order in which they can be carried out, so a dependency has a lower
// number than its dependent; the members of a group have consecutive numbers and depend on nothing among themselves;
// units cover all ops in order. Immutable once built; safe to read from many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::graph {

// Whose members wait for each other: those of one lane, of all lanes of a set, or of the lanes that a partition puts
// together (kPartition + its number).
enum class Scope : uint16_t { kLane, kLaneSet, kPartition };
// part[lane]: the first lane of its part. A part lies within a lane set.
using Partition = std::vector<uint32_t>;

// What is carried out at once: a single op, or all members of a group.
struct Unit {
  uint32_t first = 0, count = 1;
  bool synchronised = false;
  Scope scope = Scope::kLane;
};

struct OpGraph {
  std::vector<uint32_t> first_dependency;  // of op v: dependencies[first_dependency[v] .. first_dependency[v + 1])
  std::vector<uint32_t> dependencies;
  std::vector<Unit> units;
  std::vector<uint32_t> finals;      // a lane set has ended when these have, in all its lanes
  std::vector<uint32_t> first_lane;  // of each lane set, and one past the last: the lanes of a set stand together
  // [op * lanes() + lane] = 1: this lane does not have this op, which then takes no time and keeps nobody waiting.
  // Empty: every lane has every op.
  std::vector<uint8_t> absent;
  std::vector<Partition> partitions;

  size_t ops() const { return first_dependency.size() - 1; }
  size_t lane_sets() const { return first_lane.size() - 1; }
  size_t lanes() const { return first_lane.back(); }
  size_t Cell(uint32_t op, size_t lane) const { return op * lanes() + lane; }
  bool IsAbsent(size_t cell) const { return !absent.empty() && absent[cell] != 0; }
  const Partition& PartitionOf(Scope scope) const {
    return partitions[static_cast<size_t>(scope) - static_cast<size_t>(Scope::kPartition)];
  }
  std::span<const uint32_t> DependenciesOf(uint32_t op) const {
    return {dependencies.data() + first_dependency[op], dependencies.data() + first_dependency[op + 1]};
  }
  absl::Status Validate() const;
};

// Collects ops, dependencies and groups in any order and numbers them.
class OpGraphBuilder {
 public:
  using Namer = std::function<std::string(uint32_t op)>;  // for messages
  struct Built {
    OpGraph graph;
    std::vector<uint32_t> number;  // of each op, in the order in which they were added
  };

  // So many ops are expected, with two dependencies each.
  void Reserve(size_t ops) { dependencies_.reserve(2 * ops); }
  uint32_t AddOp() { return ops_++; }
  void AddDependency(uint32_t before, uint32_t after) { dependencies_.push_back({before, after}); }
  // For groups of this scope, of the lanes that Build will be given.
  Scope AddPartition(Partition partition) {
    partitions_.push_back(std::move(partition));
    return static_cast<Scope>(static_cast<size_t>(Scope::kPartition) + partitions_.size() - 1);
  }
  // An op may be in one group only.
  void AddGroup(std::vector<uint32_t> members, Scope scope) { groups_.push_back({std::move(members), scope}); }
  void AddFinal(uint32_t op) { finals_.push_back(op); }
  uint32_t ops() const { return ops_; }

  // kInvalidArgument: a cycle, whose ops are named in the order in which each waits for the next.
  absl::StatusOr<Built> Build(std::vector<uint32_t> first_lane, const Namer& name) const;

 private:
  struct Group {
    std::vector<uint32_t> members;
    Scope scope;
  };
  struct Dependency {
    uint32_t before, after;
  };
  uint32_t ops_ = 0;
  std::vector<Dependency> dependencies_;
  std::vector<Group> groups_;
  std::vector<Partition> partitions_;
  std::vector<uint32_t> finals_;
};

// Of values [lane], from lane `first` on, which cover whole lane sets: each becomes the largest of those that the scope
// puts together with it. `scratch` has room for as many.
template <typename Number>
inline __attribute__((always_inline)) void SpreadLargest(const OpGraph& graph, Scope scope, size_t first,
                                                         std::span<const uint32_t> first_lanes,
                                                         std::span<Number> values, Number* scratch) {
  constexpr Number kLowest = -std::numeric_limits<Number>::infinity();
  if (scope == Scope::kLane) return;
  if (scope == Scope::kLaneSet) {
    for (size_t set = 0; set + 1 < first_lanes.size(); ++set) {
      Number* begin = values.data() + (first_lanes[set] - first);
      Number* end = values.data() + (first_lanes[set + 1] - first);
      Number largest = kLowest;
      for (const Number* one = begin; one < end; ++one) largest = largest > *one ? largest : *one;
      for (Number* one = begin; one < end; ++one) *one = largest;
    }
    return;
  }
  const uint32_t* part = graph.PartitionOf(scope).data() + first;
  for (size_t i = 0; i < values.size(); ++i) scratch[i] = kLowest;
  for (size_t i = 0; i < values.size(); ++i) {
    Number& largest = scratch[part[i] - first];
    largest = largest > values[i] ? largest : values[i];
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = scratch[part[i] - first];
}

}  // namespace lockstep::graph
