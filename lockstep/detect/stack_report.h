// The part of `lockstep diagnose`'s document that is about stacks.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/detect/stack_groups.h"

namespace lockstep::detect {

// A program is told all; a person the largest clusters and the first ranges of ranks, and how many others there are.
enum class Reader { kProgram, kPerson };

// {basis, confidence, processes, unread, no_stack: "3, 7", evict [machine], outliers: "24-31", group_rule {dimensions,
// ranks, machines, over_evicted} | null, clusters [{role, processes, ranks: "0-23", in_communication: yes | no |
// unknown, place, frames [...], example {rank, frames [...]}}]}; for a person, where clusters are left out, a line
// clusters_left.
Json StackReport(const StackVerdict& verdict, Reader reader = Reader::kProgram);

}  // namespace lockstep::detect
