// The part of `lockstep diagnose`'s document that is about stacks.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/detect/stack_groups.h"

namespace lockstep::detect {

// {basis, confidence, processes, unread, no_stack: "3, 7", evict [machine], outliers: "24-31", group_rule {dimensions,
// ranks, machines, over_evicted} | null, clusters [{role, processes, ranks: "0-23", in_communication: yes | no |
// unknown, place, frames [...], example {rank, frames [...]}}]}.
Json StackReport(const StackVerdict& verdict);

}  // namespace lockstep::detect
