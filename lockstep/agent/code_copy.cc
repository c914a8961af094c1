#include "lockstep/agent/code_copy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

namespace fs = std::filesystem;

constexpr CodeLimits kFirstLimits{5'000, Bytes{16 << 20}, Bytes{64 << 20}};  // nobody has asked for that copy
// What a hash begins with: another number where releases make other hashes of the same code.
constexpr std::string_view kHashFormat = "2-";

class Digest {
 public:
  Digest() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }
  void Add(std::string_view bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }
  void AddWord(std::string_view text) {
    const uint64_t length = text.size();
    XXH3_128bits_update(state_.get(), &length, sizeof(length));
    Add(text);
  }
  std::string Text() const { return fmt::format("{}{:016x}", kHashFormat, XXH3_128bits_digest(state_.get()).low64); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Free> state_;
};

// The digest of a file and of whether its owner may execute it; copied on the way unless `to` is empty. Programs may be
// large: a piece at a time.
absl::StatusOr<std::string> TakeFile(const fs::path& from, const fs::path& to) {
  const Fd in(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (!in.valid() || fstat(in.get(), &info) != 0) return Errno(errno, "{}", from.string());
  std::error_code ignored;
  Fd out;
  if (!to.empty()) {
    fs::create_directories(to.parent_path(), ignored);
    out = Fd(open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOfOwner));
    if (!out.valid()) return Errno(errno, "{}", to.string());
  }
  Digest digest;
  digest.AddWord((info.st_mode & S_IXUSR) != 0 ? "may be executed" : "");
  std::array<std::byte, 65536> buffer;
  for (uint64_t at = 0;;) {
    const size_t got = ReadAt(in.get(), buffer, at);
    if (got < buffer.size() && errno != 0) return Errno(errno, "{}", from.string());
    const std::span<const std::byte> piece(buffer.data(), got);
    digest.Add({reinterpret_cast<const char*>(piece.data()), got});
    if (out.valid() && WriteAt(out.get(), piece, at) < got) return Errno(errno, "{}", to.string());
    if (got < buffer.size()) break;
    at += got;
  }
  if (out.valid() && fchmod(out.get(), info.st_mode & 0777) != 0) return Errno(errno, "{}", to.string());
  return digest.Text();
}

// "a.so is", "a.so and 2 more are"
std::string NamesText(const std::vector<std::string>& names) {
  return names.front() + (names.size() == 1 ? " is" : fmt::format(" and {} more are", names.size() - 1));
}

std::string SizeAndTime(const fs::path& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return "";
  return fmt::format("{} {}.{:09}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

// What is linked leads into the directory, so with another one it is another version, though the code be the same. What
// lies there besides code is not in the hash: jobs write into the directory they run in, and are the same version then.
// `version_in` is empty for what a run began with, which each node has where its directory is, with times of its own: a
// way back to it leads to what is linked as it is. Copies what is to be copied on the way, unless `folder` is empty.
absl::StatusOr<CodeTree> Take(const CodeListing& listing, const std::string& version_in, const std::string& folder) {
  Digest digest;
  digest.AddWord(version_in);
  for (const auto* files : {&listing.text, &listing.programs})
    for (const auto& [name, path] : *files) {
      LS_ASSIGN_OR_RETURN(const std::string content, TakeFile(path, folder.empty() ? "" : fs::path(folder) / name));
      digest.AddWord(name);
      digest.AddWord(content);
    }
  CodeTree tree;
  for (const auto& [name, path] : listing.large_programs) {
    digest.AddWord(name);
    if (!version_in.empty()) digest.AddWord(SizeAndTime(path));
    tree.linked.push_back(name);
  }
  tree.unread = listing.unread;
  tree.hash = digest.Text();
  return tree;
}

std::string FolderOf(const RunSpec& spec) { return spec.run_dir + "/code"; }

void Link(const std::map<std::string, fs::path>& files, const fs::path& folder) {
  std::error_code ignored;
  for (const auto& [name, path] : files) {
    fs::create_directories((folder / name).parent_path(), ignored);
    fs::create_symlink(fs::absolute(path), folder / name, ignored);
  }
}

// A full disk would stop checkpoints and the journal.
absl::Status CheckRoom(const RunSpec& spec, const std::string& directory, const CodeListing& listing) {
  struct statvfs disk{};
  if (statvfs(spec.run_dir.c_str(), &disk) != 0) return Errno(errno, "{}", spec.run_dir);
  const Bytes free{disk.f_bavail * disk.f_frsize};
  if (listing.size.value <= free.value / 10 * 9) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("a copy of {} takes {} MB, and {} has only {} MB left, of which a tenth is not for code", directory,
                  listing.size.value >> 20, spec.run_dir, free.value >> 20));
}

// Those that are linked have other times in another copy of the directory; who asked may have read more.
std::string OtherCodeText(const std::string& directory, const CodeTree& tree, std::string_view wanted) {
  if (!wanted.starts_with(kHashFormat))
    return fmt::format(
        "{} can't be compared with where the update was asked for: that was by another release of Lockstep, which has "
        "another way to tell code apart; ask for it again by the one that runs the job",
        directory);
  std::string text = fmt::format(
      "{} has other code here than where the update was asked for: it changed meanwhile, or is another directory",
      directory);
  if (!tree.linked.empty())
    text += fmt::format("; {} too large to be copied, so that their times count, which are others in each directory",
                        NamesText(tree.linked));
  if (!tree.unread.empty())
    text += fmt::format("; {} not to be read by the run's user, and part of the version of whoever may",
                        NamesText(tree.unread));
  return text;
}

// Into `next`, which then gets the name of what was copied. An error if its hash is not `hash` (empty: that of what the
// run began with, whatever it is).
absl::StatusOr<CodeTree> CopyTo(const RunSpec& spec, const std::string& next, const std::string& directory,
                                const CodeListing& listing, const std::string& hash) {
  LS_ASSIGN_OR_RETURN(CodeTree tree, Take(listing, hash.empty() ? "" : directory, next));
  if (!hash.empty() && tree.hash != hash) return FailedPrecondition("{}", OtherCodeText(directory, tree, hash));
  Link(listing.large_programs, next);
  Link(listing.others, next);
  const std::string path = FolderOf(spec) + "/" + tree.hash;
  std::error_code ignored;
  if (rename(next.c_str(), path.c_str()) != 0 && !fs::is_directory(path, ignored))
    return Errno(errno, "renaming {}", next);
  return tree;
}

absl::StatusOr<CodeTree> CopyCode(const RunSpec& spec, const std::string& directory, const std::string& hash,
                                  const CodeLimits& limits) {
  LS_RETURN_IF_ERROR(CheckCode(spec, directory));
  LS_ASSIGN_OR_RETURN(const CodeListing listing, ListCode(directory, EntryOf(spec), limits));
  LS_RETURN_IF_ERROR(CheckRoom(spec, directory, listing));
  LS_RETURN_IF_ERROR(MakeDirectory(FolderOf(spec)));
  std::string next = FolderOf(spec) + "/next.XXXXXX";  // a new one, whatever an agent that was killed has left
  if (mkdtemp(next.data()) == nullptr) return Errno(errno, "{}", next);
  absl::StatusOr<CodeTree> tree = CopyTo(spec, next, directory, listing, hash);
  std::error_code ignored;
  fs::remove_all(next, ignored);  // where it is not the copy now
  return tree;
}

std::string FirstHash(const RunSpec& spec) {
  std::array<char, 64> name{};
  const ssize_t length = readlink((FolderOf(spec) + "/first").c_str(), name.data(), name.size());
  return length > 0 ? std::string(name.data(), static_cast<size_t>(length)) : "";
}

absl::StatusOr<CodeTree> LookAtFirst(const RunSpec& spec, const std::string& directory) {
  LS_ASSIGN_OR_RETURN(const CodeListing listing, ListCode(directory, EntryOf(spec), kFirstLimits));
  return Take(listing, "", "");
}

// There until it is copied; its text is the epoch in which it was, if it could not be at first.
std::string LatePath(const RunSpec& spec) { return FolderOf(spec) + "/first.late"; }

// The directory may have been edited in place before a copy that comes later.
absl::Status CopyFirst(const RunSpec& spec, const std::string& root, EpochId epoch) {
  LS_RETURN_IF_ERROR(MakeDirectory(FolderOf(spec)));
  std::error_code ignored;
  const bool late = fs::exists(LatePath(spec), ignored);
  if (!late) LS_RETURN_IF_ERROR(WriteFileAtomically(LatePath(spec), ""));  // whatever ends this attempt
  LS_ASSIGN_OR_RETURN(const CodeTree tree, CopyCode(spec, root, "", kFirstLimits));
  if (late) LS_RETURN_IF_ERROR(WriteFileAtomically(LatePath(spec), fmt::format("{}", epoch.value())));
  const std::string first = FolderOf(spec) + "/first";
  if (symlink(tree.hash.c_str(), first.c_str()) != 0) return Errno(errno, "{}", first);
  if (!late) fs::remove(LatePath(spec), ignored);
  return absl::OkStatus();
}

// What is to be said of the copy; empty: nothing.
std::string WhatOfFirst(const RunSpec& spec, const std::string& hash) {
  const absl::StatusOr<CodeTree> copy = LookAtFirst(spec, FolderOf(spec) + "/" + hash);
  const std::string linked = copy.ok() ? WhatIsLinked(*copy, kFirstLimits) : Message(copy.status());
  const std::string late = ReadFile(LatePath(spec)).value_or("");
  if (late.empty()) return linked;
  return fmt::format("it was taken in epoch {}, of what was there then{}{}", late, linked.empty() ? "" : "; ", linked);
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
                           spec.command.empty() ? "script" : EntryOf(spec));
  if (spec.command.empty()) return absl::OkStatus();
  LS_RETURN_IF_ERROR(CodeRoot(spec).status());
  const fs::path inside = fs::path(directory) / EntryOf(spec);
  const bool there = spec.module ? fs::exists(inside, ignored) || fs::exists(inside.string() + ".py", ignored)
                                 : fs::is_regular_file(inside, ignored);
  if (there) return absl::OkStatus();
  return NotFound("--code {} has no {}{}: it must have what the run was started with", directory, EntryOf(spec),
                  spec.module ? " or " + EntryOf(spec) + ".py" : "");
}

absl::StatusOr<CodeTree> LookAtCode(const std::string& entry, const std::string& directory, const CodeLimits& limits) {
  LS_ASSIGN_OR_RETURN(const CodeListing listing, ListCode(directory, entry, limits));
  return Take(listing, directory, "");
}

std::string EntryOf(const RunSpec& spec) {
  if (spec.command.empty()) return "";
  const std::string& first = spec.command.front();
  return spec.module ? first.substr(0, first.find('.')) : fs::path(first).filename().string();
}

std::string WhatIsLinked(const CodeTree& tree, const CodeLimits& limits) {
  std::string text;
  if (!tree.linked.empty())
    text = fmt::format("more than {} MB of programs, so {} not copied", limits.most_programs.value >> 20,
                       NamesText(tree.linked));
  if (!tree.unread.empty())
    text += fmt::format("{}{} not to be read here, so not copied", text.empty() ? "" : "; ", NamesText(tree.unread));
  return text;
}

control::CodeKept KeepFirstCode(const RunSpec& spec, EpochId epoch) {
  const absl::StatusOr<std::string> root = CodeRoot(spec);
  if (!root.ok()) return {};
  const auto of_node = [&](const std::string& why) { return fmt::format("node {}: {}", spec.node_name, why); };
  if (FirstHash(spec).empty())
    if (const absl::Status copied = CopyFirst(spec, *root, epoch); !copied.ok()) return {0, of_node(Message(copied))};
  const std::string hash = FirstHash(spec), what = WhatOfFirst(spec, hash);
  return {0, what.empty() ? "" : of_node(what), hash};
}

absl::StatusOr<std::string> PathOfCode(const RunSpec& spec, const control::Version& version) {
  const std::string folder = FolderOf(spec) + "/";
  if (!version.code.empty()) {
    std::error_code ignored;
    if (!fs::is_directory(folder + version.hash, ignored))
      LS_RETURN_IF_ERROR(CopyCode(spec, version.code, version.hash, {}).status());
    return folder + version.hash;
  }
  // A coordinator of an older release does not say which.
  const std::string wanted = version.hash.empty() ? FirstHash(spec) : version.hash;
  if (!version.kept || wanted.empty()) return std::string();
  LS_ASSIGN_OR_RETURN(const std::string root, CodeRoot(spec));
  const absl::StatusOr<CodeTree> now = LookAtFirst(spec, root);
  if (now.ok() && now->hash == wanted) return std::string();
  if (FirstHash(spec) == wanted) return folder + wanted;
  return FailedPrecondition("{} was changed since the run began, and this node has no copy of what was there", root);
}

}  // namespace lockstep::agent
