// When whoever watched this run was last there. The journal's newest event may be seconds older; the starter, which
// outlives all watchers, notes when the connection of one breaks, in a file of the run directory. Times:
// CLOCK_BOOTTIME.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::agent {

inline constexpr char kUnwatchedFile[] = "unwatched.json";

absl::Status NoteUnwatched(const std::string& run_dir, Nanos since);
// None was noted: 0. Somebody may have come after it, and gone without a note.
Nanos LastWatched(const std::string& run_dir);

}  // namespace lockstep::agent
