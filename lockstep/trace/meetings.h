// Which communications of several ranks are one: from single observations ("these met in this step") to groups of a
// graph whose lanes share a template.
//
// Ops that met anywhere may be one op of all. They become a group, over the lanes that met, if most of their meetings
// hold (four fifths) and no two of them are of one role: those would wait for each other. All others stay single.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/graph/op_graph.h"

namespace lockstep::trace {

class Meetings {
 public:
  struct Member {
    uint32_t lane, op;
  };
  // role_of_op: ops of one role are all in the same lanes. first_lane: as the graph's.
  Meetings(std::vector<uint32_t> role_of_op, std::vector<uint32_t> first_lane);

  // members: of lanes of one set, at least one. holds: they were seen to be together.
  void Add(std::vector<Member> members, bool holds);
  // Adds a group for each of these communications. Returns how many stay single.
  uint64_t AddGroups(const std::vector<uint32_t>& communications, graph::OpGraphBuilder& builder);

 private:
  struct Meeting {
    std::vector<Member> members;
    bool holds;
  };
  uint32_t LeaderOf(uint32_t op) const;
  bool OncePerRole(const std::vector<uint32_t>& ops) const;

  const std::vector<uint32_t> role_of_op_, first_lane_;
  std::vector<uint32_t> leader_;  // of each op, another that may be one with it; of one that leads, itself
  std::vector<Meeting> meetings_;
};

}  // namespace lockstep::trace
