// Python pickles of plain values: dicts with text as keys, lists, tuples, text, numbers, None. What could run code when
// Python reads it (a global, a call) is refused by its name, never looked up.
#pragma once

#include <string_view>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::trace {

// kInvalidArgument: what stands at which byte, and what was expected; cut off; nested more than 64 deep; grown by
// repetition to more than sixteen values per byte.
absl::StatusOr<Json> ReadPickle(std::string_view bytes);

}  // namespace lockstep::trace
