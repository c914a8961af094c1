#include "lockstep/prepare/source.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/prepare/folder.h"
#include "lockstep/prepare/lmdb.h"
#include "lockstep/prepare/pack.h"
#include "lockstep/prepare/records.h"
#include "lockstep/prepare/shard_list.h"
#include "lockstep/prepare/tar.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

struct ShardsOfDirectory {
  std::vector<std::string> paths;
  uint64_t beside = 0;  // what else lies there, files and folders
};
absl::StatusOr<ShardsOfDirectory> ShardsIn(const std::string& path) {
  ShardsOfDirectory shards;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".tar") {
      shards.paths.push_back(it->path().string());
    } else {
      ++shards.beside;
    }
  }
  if (error) return ErrnoError(error.value(), path);
  std::sort(shards.paths.begin(), shards.paths.end());
  return shards;
}

// Shards, or files below a folder.
absl::StatusOr<std::unique_ptr<Source>> OpenSeveral(Files& files, const std::string& what, const std::string& folder,
                                                    const std::vector<std::string>& paths) {
  const auto is_shard = [](const std::string& path) { return ExtensionOf(path) == ".tar"; };
  if (!is_shard(paths.front()) && KindOfName(NameOf(paths.front()))) return OpenListed(folder, paths);
  const auto other = std::find_if_not(paths.begin(), paths.end(), is_shard);
  if (other != paths.end())
    return InvalidArgument("{}: of several files, all must be .tar, or else images or sounds, found {}",
                           WithoutQuery(what), WithoutQuery(*other));
  return OpenTar(files, what, paths);
}

absl::StatusOr<std::unique_ptr<Source>> OpenDirectory(Files& files, const std::string& path) {
  std::error_code error;
  if (const fs::path data = fs::path(path) / "data.mdb"; fs::exists(data, error)) {
    LS_ASSIGN_OR_RETURN(DataFile file, files.Open(data.string()));
    return OpenLmdb(std::move(file));
  }
  LS_ASSIGN_OR_RETURN(const ShardsOfDirectory shards, ShardsIn(path));
  return shards.paths.empty() ? OpenFolder(path) : OpenTar(files, path, shards.paths, shards.beside);
}

absl::StatusOr<std::unique_ptr<Source>> OpenTokenFile(Files& files, const SourceSpec& spec) {
  if (spec.pack != PackRule::kNone) return OpenPacked(files, spec);
  if (spec.end_token || !spec.documents.empty())
    return InvalidArgument("{}: where documents end matters only if they are packed: say how", WithoutQuery(spec.path));
  LS_ASSIGN_OR_RETURN(DataFile file, files.Open(spec.path));
  return OpenTokens(std::move(file), spec.token_bytes, spec.tokens_per_item);
}

absl::StatusOr<std::unique_ptr<Source>> OpenFile(Files& files, const SourceSpec& spec) {
  const std::string extension = ExtensionOf(spec.path);
  if (extension == ".tar") return OpenTar(files, spec.path, {spec.path});
  if (extension == ".bin" || extension == ".tokens") return OpenTokenFile(files, spec);
  for (const char* known : {".mdb", ".lmdb", ".npy", ".safetensors"}) {
    if (extension != known) continue;
    LS_ASSIGN_OR_RETURN(DataFile file, files.Open(spec.path));
    if (extension == ".npy") return OpenNpy(std::move(file));
    if (extension == ".safetensors") return OpenSafetensors(std::move(file), spec.tensor);
    return OpenLmdb(std::move(file));
  }
  return InvalidArgument("{}: expected a directory of images, .tar, .mdb, .npy, .safetensors, .bin or .tokens",
                         WithoutQuery(spec.path));
}

absl::StatusOr<std::unique_ptr<Source>> OpenAny(Files& files, const SourceSpec& spec) {
  std::error_code error;
  const fs::file_status status = IsUrl(spec.path) ? fs::file_status() : fs::status(spec.path, error);
  if (fs::is_directory(status)) return OpenDirectory(files, spec.path);
  if (!fs::exists(status)) {
    LS_ASSIGN_OR_RETURN(std::vector<std::string> paths, ExpandBraces(spec.path));
    std::transform(paths.begin(), paths.end(), paths.begin(), Located);
    if (const auto repeated = FindRepeated(paths))
      return InvalidArgument("{}: it stands for {} twice: expected each file once", WithoutQuery(spec.path),
                             WithoutQuery(paths[repeated->second]));
    if (paths.size() > 1) return OpenSeveral(files, spec.path, FolderOf(BeforeBraces(spec.path)), paths);
    if (!IsUrl(spec.path)) return ErrnoError(error ? error.value() : ENOENT, spec.path);
  }
  if (IsShardList(spec.path)) {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ReadShardList(files, spec.path));
    return OpenSeveral(files, spec.path, FolderOf(spec.path), paths);
  }
  return OpenFile(files, spec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec) {
  auto files = std::make_unique<Files>(spec.patience);
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Source> source, OpenAny(*files, spec));
  source->Keep(std::move(files));
  return source;
}

}  // namespace lockstep::prepare
