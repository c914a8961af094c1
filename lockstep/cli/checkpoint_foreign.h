// What `lockstep checkpoint` does with checkpoints of other systems: looks at them, and begins a run with one.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::cli {

struct ForeignImport {
  std::string out;  // empty: none is meant
  int world_size = 0;
  bool as_saved = false;
  std::optional<int64_t> step;
  std::vector<std::string> shards, renames;
};

void AddForeignInspect(CLI::App& parent, int& exit_code);
void AddForeignFlags(CLI::App& command, ForeignImport& flags);
// Prints what became of it.
absl::Status ImportForeign(const std::string& path, const ForeignImport& flags);

}  // namespace lockstep::cli
