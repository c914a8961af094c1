#include "lockstep/prepare/source.h"

#include <filesystem>

#include "lockstep/prepare/folder.h"
#include "lockstep/prepare/lmdb.h"
#include "lockstep/prepare/records.h"
#include "lockstep/prepare/tar.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

// Shards in it, and nothing else that could be meant.
bool IsOfShards(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".tar") return true;
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec) {
  std::error_code error;
  const fs::file_status status = fs::status(spec.path, error);
  if (!fs::exists(status)) return ErrnoError(error ? error.value() : ENOENT, spec.path);
  if (fs::is_directory(status) && fs::exists(fs::path(spec.path) / "data.mdb", error)) return OpenLmdb(spec.path);
  if (fs::is_directory(status)) return IsOfShards(spec.path) ? OpenTar(spec.path) : OpenFolder(spec.path);
  const std::string extension = fs::path(spec.path).extension().string();
  if (extension == ".tar") return OpenTar(spec.path);
  if (extension == ".mdb" || extension == ".lmdb") return OpenLmdb(spec.path);
  if (extension == ".npy") return OpenNpy(spec.path);
  if (extension == ".safetensors") return OpenSafetensors(spec.path, spec.tensor);
  if (extension == ".bin" || extension == ".tokens")
    return OpenTokens(spec.path, spec.token_bytes, spec.tokens_per_item);
  return InvalidArgument("{}: expected a directory of images, .tar, .mdb, .npy, .safetensors, .bin or .tokens",
                         spec.path);
}

}  // namespace lockstep::prepare
