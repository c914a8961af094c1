#include "lockstep/node/install.h"

#include <filesystem>

#include "lockstep/base/child.h"
#include "lockstep/cluster/presets.h"

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;

}  // namespace

absl::StatusOr<Installation> FindInstallation() {
  LS_ASSIGN_OR_RETURN(const fs::path binary, OwnBinary());
  const fs::path prefix = binary.parent_path().parent_path();  // PREFIX/bin/lockstep, or TREE/build/PRESET/bin/lockstep
  const fs::path shared = prefix / "share/lockstep", tree = prefix.parent_path().parent_path();
  const fs::path root = fs::exists(shared / "python") ? shared : tree;
  Installation found{(root / "python").string(), (prefix / "lib/liblockstep-client.so").string(),
                     (prefix / "lib/liblockstep-gloo.so").string(),
                     (prefix / "lib/lockstep/nccl/liblockstep-nccl-profiler.so").string(), (root / "presets").string()};
  for (const std::string& path :
       {found.package_dir + "/lockstep/__init__.py", found.client_lib, found.gloo_lib, found.nccl_lib}) {
    if (!fs::exists(path)) return NotFound("{} is missing; build or install Lockstep again", path);
  }
  return found;
}

absl::StatusOr<std::string> FindPreset(std::string_view kind, const std::string& name) {
  LS_ASSIGN_OR_RETURN(const Installation installation, FindInstallation());
  return cluster::Presets(installation.presets).Find(kind, name, ".");
}

}  // namespace lockstep::node
