// Where the named specs live: <dir>/{accelerators,clusters,models,...}/<name>.toml. A spec refers to another by preset
// name ("h100-sxm") or by a path that ends in .toml, relative to the file that names it.
//
//   const Presets presets("presets");
//   LS_ASSIGN_OR_RETURN(std::string path, presets.Find("accelerators", "h100-sxm", "."));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::cluster {

class Presets {
 public:
  explicit Presets(std::string dir) : dir_(std::move(dir)) {}
  // The path of the file that `name` means to a file in folder `from`. NotFound lists what there is.
  absl::StatusOr<std::string> Find(std::string_view kind, const std::string& name, const std::string& from) const;
  // Preset names of a kind, sorted; empty if there are none.
  std::vector<std::string> Names(std::string_view kind) const;

 private:
  std::string dir_;
};

// The folder part of a path; "." if it has none.
std::string FolderOf(const std::string& path);

}  // namespace lockstep::cluster
