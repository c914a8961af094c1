// The model of a workload: a preset or a .toml file (cluster/model.h), or a config.json as Hugging Face has it.
#pragma once

#include <string>

#include "lockstep/cluster/presets.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// Fills the members of the model. NotFound lists the presets; kInvalidArgument names the key of a config.json that is
// missing, or tells of what is not known here. `note`: of a config.json of a kind that nobody has held against what is
// read of it; else empty.
absl::Status TakeModel(const std::string& name, const cluster::Presets& presets, Workload& workload,
                       std::string* note = nullptr);
absl::Status TakeHuggingFace(std::string_view text, const std::string& path, Workload& workload,
                             std::string* note = nullptr);

}  // namespace lockstep::plan
