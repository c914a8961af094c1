#include "lockstep/agent/code_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 24> kCodeSuffixes = {
    ".py", ".pyi", ".pyx", ".pxd", ".so",  ".json", ".yaml", ".yml", ".toml", ".ini",   ".cfg",   ".conf",
    ".sh", ".c",   ".cc",  ".cpp", ".cxx", ".cu",   ".cuh",  ".h",   ".hpp",  ".proto", ".jinja", ".tmpl"};
constexpr CodeLimits kFirstLimits{5'000, Bytes{16 << 20}};  // nobody has asked for that copy

// Files to copy and entries to link, by their names below the directory; directories are made on the way.
struct Listing {
  std::map<std::string, fs::path> code, links;
  int entries = 0;
  Bytes size;
};

// As a script, or as a compiled program or library.
bool BeginsAsProgram(const fs::path& path) {
  std::array<char, 4> first{};
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || read(fd.get(), first.data(), first.size()) < 2) return false;
  return std::string_view(first.data(), 2) == "#!" || std::string_view(first.data(), 4) == "\177ELF";
}

// Some file systems call every file executable, so that alone makes no program of it.
bool IsCode(const fs::path& path) {
  const std::string suffix = path.extension().string();
  if (std::find(kCodeSuffixes.begin(), kCodeSuffixes.end(), suffix) != kCodeSuffixes.end()) return true;
  return (suffix.empty() || access(path.c_str(), X_OK) == 0) && BeginsAsProgram(path);
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

// `entry`, which workers are started with, is code whatever it is called.
absl::Status List(const fs::path& directory, const std::string& below, const std::string& entry,
                  const CodeLimits& limits, Listing& listing) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    const std::string name = below + path.filename().string();
    if (IsLeftOut(path) && name != entry) continue;
    if (++listing.entries > limits.most_entries)
      return InvalidArgument("{} has more than {} files: put the code into a directory of its own", directory.string(),
                             limits.most_entries);
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) {
      if (!IsForeign(path)) LS_RETURN_IF_ERROR(List(path, name + "/", entry, limits, listing));
    } else if (it->is_regular_file(ignored) && (name == entry || IsCode(path))) {
      listing.code[name] = path;
      listing.size += Bytes{it->file_size(ignored)};
    } else if (it->is_regular_file(ignored) || it->is_directory(ignored)) {
      listing.links[name] = path;
    }
  }
  if (error) return Errno(error.value(), "reading {}", directory.string());
  if (listing.size > limits.most)
    return InvalidArgument("{} has more than {} MB of code: put the code into a directory of its own",
                           directory.string(), limits.most.value >> 20);
  return absl::OkStatus();
}

// What is linked leads into the directory, so with another one it is another version, though the code be the same. What
// lies there besides code is not in it: jobs write into the directory they run in, and are the same version then.
std::string Hash(const std::string& directory, const std::map<std::string, std::string>& contents) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  const auto add = [&](const std::string& text) {
    const uint64_t length = text.size();
    XXH3_128bits_update(state, &length, sizeof(length));
    XXH3_128bits_update(state, text.data(), text.size());
  };
  add(directory);
  for (const auto& [name, content] : contents) add(name), add(content);
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return fmt::format("{:016x}", hash.low64);
}

// The script's name below its directory; of a module, its first part.
std::string NameBelow(const RunSpec& spec) {
  const std::string& first = spec.command.front();
  return spec.module ? first.substr(0, first.find('.')) : fs::path(first).filename().string();
}

struct Snapshot {
  Listing listing;
  std::map<std::string, std::string> contents;
  CodeTree tree;
};

absl::StatusOr<Snapshot> Read(const RunSpec& spec, const std::string& directory, const CodeLimits& limits) {
  Snapshot snapshot;
  const std::string entry = spec.command.empty() ? "" : NameBelow(spec);
  LS_RETURN_IF_ERROR(List(directory, "", entry, limits, snapshot.listing));
  for (const auto& [name, path] : snapshot.listing.code) {
    LS_ASSIGN_OR_RETURN(snapshot.contents[name], ReadFile(path.string()));
  }
  snapshot.tree = {Hash(directory, snapshot.contents), static_cast<int>(snapshot.contents.size()),
                   snapshot.listing.size};
  return snapshot;
}

std::string FolderOf(const RunSpec& spec) { return spec.run_dir + "/code"; }

absl::Status Write(const Snapshot& snapshot, const fs::path& folder) {
  std::error_code error;
  for (const auto& [name, content] : snapshot.contents) {
    fs::create_directories((folder / name).parent_path(), error);
    LS_RETURN_IF_ERROR(WriteFileAtomically((folder / name).string(), content));
    std::error_code ignored;
    fs::permissions(folder / name, fs::status(snapshot.listing.code.at(name), ignored).permissions(), ignored);
  }
  for (const auto& [name, path] : snapshot.listing.links) {
    fs::create_directories((folder / name).parent_path(), error);
    fs::create_symlink(fs::absolute(path), folder / name, error);
  }
  return absl::OkStatus();
}

std::string FirstHash(const RunSpec& spec) {
  std::array<char, 64> name{};
  const ssize_t length = readlink((FolderOf(spec) + "/first").c_str(), name.data(), name.size());
  return length > 0 ? std::string(name.data(), static_cast<size_t>(length)) : "";
}

}  // namespace

absl::StatusOr<std::string> CodeRoot(const RunSpec& spec) {
  if (spec.command.empty()) return FailedPrecondition("{} runs no script of its own", spec.run_dir);
  if (spec.module) return spec.cwd;
  const std::string& script = spec.command.front();
  if (spec.torchrun.no_python && script.find('/') == std::string::npos)
    return FailedPrecondition("{} is found on PATH (--no-python): a new version of it can't be given by --code",
                              script);
  const fs::path path = fs::path(spec.cwd) / script;  // an absolute one stands alone
  std::error_code error;
  const fs::path root = fs::weakly_canonical(path.parent_path(), error);
  return (error ? path.parent_path() : root).string();
}

absl::Status CheckCode(const RunSpec& spec, const std::string& directory) {
  std::error_code ignored;
  if (!fs::exists(directory, ignored)) return NotFound("--code {} does not exist", directory);
  if (!fs::is_directory(directory, ignored))
    return InvalidArgument("--code {} is a file: name the directory in which the new {} is", directory,
                           spec.command.empty() ? "script" : NameBelow(spec));
  if (spec.command.empty()) return absl::OkStatus();
  LS_RETURN_IF_ERROR(CodeRoot(spec).status());
  const fs::path inside = fs::path(directory) / NameBelow(spec);
  const bool there = spec.module ? fs::exists(inside, ignored) || fs::exists(inside.string() + ".py", ignored)
                                 : fs::is_regular_file(inside, ignored);
  if (there) return absl::OkStatus();
  return NotFound("--code {} has no {}{}: it must have what the run was started with", directory, NameBelow(spec),
                  spec.module ? " or " + NameBelow(spec) + ".py" : "");
}

absl::StatusOr<CodeTree> LookAtCode(const RunSpec& spec, const std::string& directory, const CodeLimits& limits) {
  LS_ASSIGN_OR_RETURN(const Snapshot snapshot, Read(spec, directory, limits));
  return snapshot.tree;
}

absl::StatusOr<std::string> CopyCode(const RunSpec& spec, const std::string& directory, const std::string& hash,
                                     const CodeLimits& limits) {
  const std::string folder = FolderOf(spec);
  std::error_code ignored;
  if (!hash.empty() && fs::is_directory(folder + "/" + hash, ignored)) return folder + "/" + hash;
  LS_RETURN_IF_ERROR(CheckCode(spec, directory));
  LS_ASSIGN_OR_RETURN(const Snapshot snapshot, Read(spec, directory, limits));
  if (!hash.empty() && snapshot.tree.hash != hash)
    return FailedPrecondition(
        "{} has other code here than where the update was asked for: it changed meanwhile, or is "
        "another directory",
        directory);
  const std::string path = folder + "/" + snapshot.tree.hash, next = fmt::format("{}.{}", path, getpid());
  if (fs::is_directory(path, ignored)) return path;
  LS_RETURN_IF_ERROR(MakeDirectory(next));
  absl::Status written = Write(snapshot, next);
  if (written.ok() && rename(next.c_str(), path.c_str()) != 0) written = Errno(errno, "renaming {}", next);
  if (written.ok()) return path;
  fs::remove_all(next, ignored);
  return written;
}

void KeepFirstCode(const RunSpec& spec) {
  if (!FirstHash(spec).empty()) return;
  const absl::StatusOr<std::string> root = CodeRoot(spec);
  if (!root.ok()) return;
  const absl::StatusOr<std::string> path = CopyCode(spec, *root, "", kFirstLimits);
  if (!path.ok()) return;  // a way back to it then leads to what is there
  std::error_code ignored;
  fs::create_symlink(fs::path(*path).filename(), FolderOf(spec) + "/first", ignored);
}

absl::StatusOr<std::string> PathOfCode(const RunSpec& spec, const control::Version& version) {
  if (!version.code.empty()) return CopyCode(spec, version.code, version.hash);
  const std::string first = version.kept ? FirstHash(spec) : "";
  if (first.empty()) return std::string();
  LS_ASSIGN_OR_RETURN(const std::string root, CodeRoot(spec));
  const absl::StatusOr<CodeTree> now = LookAtCode(spec, root, kFirstLimits);
  if (now.ok() && now->hash == first) return std::string();
  return FolderOf(spec) + "/" + first;
}

}  // namespace lockstep::agent
