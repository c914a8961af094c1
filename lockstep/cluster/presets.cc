#include "lockstep/cluster/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/cluster/table_reader.h"

namespace lockstep::cluster {
namespace fs = std::filesystem;

std::string FolderOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::vector<std::string> Presets::Names(std::string_view kind) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(dir_) / kind, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".toml") names.push_back(entry->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> Presets::Find(std::string_view kind, const std::string& name,
                                          const std::string& from) const {
  std::error_code error;
  if (name.ends_with(".toml")) {
    const fs::path path = fs::path(name).is_absolute() ? fs::path(name) : fs::path(from) / name;
    if (!fs::exists(path, error)) return NotFound("{}: no such file", path.string());
    return path.string();
  }
  if (name.find('/') != std::string::npos)
    return NotFound("{}: {}", name, fs::exists(name, error) ? "expected a name that ends with .toml" : "no such file");
  const std::vector<std::string> names = Names(kind);
  const bool is_preset = std::find(names.begin(), names.end(), name) != names.end();
  if (!is_preset && fs::is_regular_file(fs::path(from) / name, error))
    return NotFound("{}: a file, but its name does not end with .toml, and so it was taken for that of a preset", name);
  if (is_preset) return fmt::format("{}/{}/{}.toml", dir_, kind, name);
  const std::string_view nearest = Nearest(name, names);
  if (!nearest.empty()) return NotFound("\"{}\" is not among the {}; did you mean {}?", name, kind, nearest);
  return NotFound("\"{}\" is not among the {} in {}: {}", name, kind, dir_,
                  names.empty() ? "(none)" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace lockstep::cluster
