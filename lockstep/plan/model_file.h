// The model of a workload: a preset or a .toml file (cluster/model.h), or a config.json as Hugging Face has it.
#pragma once

#include <string>

#include "lockstep/cluster/presets.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// Fills the members of the model. NotFound lists the presets; kInvalidArgument names the key of a config.json that is
// missing.
absl::Status TakeModel(const std::string& name, const cluster::Presets& presets, Workload& workload);
absl::Status TakeHuggingFace(std::string_view text, const std::string& path, Workload& workload);

}  // namespace lockstep::plan
