// Where our own files lie: in the source tree of a build, or under the prefix of an installation.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::node {

struct Installation {
  std::string package_dir;  // holds the Python package `lockstep`
  std::string client_lib;   // liblockstep-client.so
  std::string gloo_lib;     // liblockstep-gloo.so
  std::string nccl_lib;     // liblockstep-nccl-profiler.so, alone in its folder, which comes first for the loader
  std::string presets;      // accelerators/, clusters/, models/
};

// An error names the file that is missing.
absl::StatusOr<Installation> FindInstallation();

// The file that a name on a command line means: a path that ends in .toml, or the preset of that kind and name.
absl::StatusOr<std::string> FindPreset(std::string_view kind, const std::string& name);

}  // namespace lockstep::node
