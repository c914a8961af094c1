// The metadata file of a straggler trace: YAML with the sizes of the parallel dimensions.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::trace {

// Errors name file, line, what was found and what was expected. Requires world_size = dp * dsp * pp * tp.
absl::StatusOr<StragglerMeta> ReadStragglerMeta(const std::string& path);

absl::Status WriteStragglerMeta(const std::string& path, const StragglerMeta& meta);

}  // namespace lockstep::trace
