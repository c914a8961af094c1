// Python pickles of plain values: dicts with text as keys, lists, tuples, text, numbers, None. What could run code when
// Python reads it (a global, a call) is refused by its name, never looked up. Pickles of objects: pickle_graph.h.
#pragma once

#include <string_view>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/trace/pickle_graph.h"

namespace lockstep::trace {

// kInvalidArgument: what stands at which byte, and what was expected; cut off; nested more than 64 deep; grown by
// repetition to more than sixteen values, or bits of text of sixteen bytes, per byte.
absl::StatusOr<Json> ReadPickle(std::string_view bytes);

// How many values a pickle of so many bytes may be written out as.
uint64_t LargestOf(uint64_t bytes);
// One value of a graph, of which at most `left` values, which go down by what it has; objects are refused by the names
// of their classes.
absl::StatusOr<Json> PlainValue(const PickleGraph& graph, PickleId id, uint64_t& left);

}  // namespace lockstep::trace
