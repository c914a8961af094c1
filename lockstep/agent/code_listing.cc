#include "lockstep/agent/code_listing.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 23> kTextSuffixes = {
    ".py", ".pyi", ".pyx", ".pxd", ".json", ".yaml", ".yml", ".toml", ".ini",   ".cfg",   ".conf", ".sh",
    ".c",  ".cc",  ".cpp", ".cxx", ".cu",   ".cuh",  ".h",   ".hpp",  ".proto", ".jinja", ".tmpl"};

// As a script, or as a compiled program or library.
bool BeginsAsProgram(const fs::path& path) {
  std::array<char, 4> first{};
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || read(fd.get(), first.data(), first.size()) < 2) return false;
  return std::string_view(first.data(), 2) == "#!" || std::string_view(first.data(), 4) == "\177ELF";
}

bool IsText(const fs::path& path) {
  return std::find(kTextSuffixes.begin(), kTextSuffixes.end(), path.extension().string()) != kTextSuffixes.end();
}

// Some file systems call every file executable, so that alone makes no program of it.
bool IsProgram(const fs::path& path) {
  const std::string suffix = path.extension().string();
  return suffix == ".so" || ((suffix.empty() || access(path.c_str(), X_OK) == 0) && BeginsAsProgram(path));
}

bool IsLeftOut(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || name == "__pycache__";
}

// Runs and virtual environments lie in directories of code, too.
bool IsForeign(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(directory / "run.json", ignored) || fs::exists(directory / "pyvenv.cfg", ignored);
}

bool May(const fs::path& path, int mode) { return faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0; }

// Whoever may not read it runs without it, too.
void PassOver(const std::string& name, const fs::path& path, CodeListing& listing) {
  listing.others[name] = path;
  listing.unread.push_back(name);
}

// `entry`, which workers are started with, is code whatever it is called.
absl::Status List(const fs::path& directory, const std::string& below, const std::string& entry,
                  const CodeLimits& limits, CodeListing& listing) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    const std::string name = below + path.filename().string();
    if (IsLeftOut(path) && name != entry) continue;
    if (++listing.entries > limits.most_entries)
      return InvalidArgument("{} has more than {} files: put the code into a directory of its own", directory.string(),
                             limits.most_entries);
    std::error_code ignored;
    const bool is_folder = it->is_directory(ignored) && !it->is_symlink(ignored);
    const bool is_file = it->is_regular_file(ignored), is_text = is_file && name != entry && IsText(path);
    const bool is_program = is_file && !is_text && (name == entry || IsProgram(path));
    if (name != entry && (is_folder ? !May(path, R_OK | X_OK) : (is_text || is_program) && !May(path, R_OK))) {
      PassOver(name, path, listing);
    } else if (is_folder) {
      if (!IsForeign(path)) LS_RETURN_IF_ERROR(List(path, name + "/", entry, limits, listing));
    } else if (is_text) {
      listing.text[name] = path;
      listing.size += Bytes{it->file_size(ignored)};
    } else if (is_program) {
      listing.programs[name] = path;
    } else if (is_file || it->is_directory(ignored)) {
      listing.others[name] = path;
    }
  }
  if (error) return Errno(error.value(), "reading {}", directory.string());
  if (listing.size > limits.most)
    return InvalidArgument("{} has more than {} MB of code: put the code into a directory of its own",
                           directory.string(), limits.most.value >> 20);
  return absl::OkStatus();
}

// The smallest are copied as long as they are within the limit, the entry before all others.
void LinkLarge(const std::string& entry, Bytes most, CodeListing& listing) {
  std::vector<std::tuple<bool, uint64_t, std::string>> in_order;
  for (const auto& [name, path] : listing.programs) {
    std::error_code ignored;
    in_order.emplace_back(name != entry, fs::file_size(path, ignored), name);
  }
  std::sort(in_order.begin(), in_order.end());
  Bytes size;
  for (const auto& [is_other, bytes, name] : in_order) {
    if (size + Bytes{bytes} > most)
      listing.large_programs.insert(listing.programs.extract(name));
    else
      size += Bytes{bytes};
  }
  listing.size += size;
}

}  // namespace

absl::StatusOr<CodeListing> ListCode(const std::string& directory, const std::string& entry, const CodeLimits& limits) {
  CodeListing listing;
  LS_RETURN_IF_ERROR(List(directory, "", entry, limits, listing));
  LinkLarge(entry, limits.most_programs, listing);
  return listing;
}

}  // namespace lockstep::agent
