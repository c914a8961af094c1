// Every core sends to every other one through memory, and looks at what came: the ways between cores, caches and
// sockets of one machine. One party per core, at most 16, spread over the allowed ones (two on a machine with one
// core). In round r party i fetches from party i + r what lies there for it, so that all ways are used equally. Memory:
// parties^2 * 256 KiB, twice: at most 128 MiB.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

// For tests: what a fault does to what `to` fetched from `from`, before it is looked at.
using TamperBlock = std::function<void(size_t from, size_t to, std::span<uint64_t> block)>;

// all_to_all.bits (errors: blocks that came wrong), all_to_all.all (GB/s of all parties), all_to_all.slowest (GB/s of
// one pair's blocks while all exchange).
std::vector<Measurement> MeasureAllToAll(const Budget& budget, const std::vector<int>& cores,
                                         const TamperBlock& tamper = {});

}  // namespace lockstep::probe
