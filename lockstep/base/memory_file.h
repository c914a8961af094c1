// A file without a name, in memory, for what another process is to read.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep {

// With these bytes, to be read from its beginning. `name` is what /proc shows.
absl::StatusOr<Fd> MemoryFile(const std::string& name, std::string_view bytes);

}  // namespace lockstep
