#include "lockstep/prepare/index_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/prepare/folder.h"
#include "lockstep/prepare/transcode.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

absl::Status CheckApart(const std::string& from, const std::string& to) {
  std::error_code error;
  const fs::path source = fs::weakly_canonical(from, error), target = fs::weakly_canonical(to, error);
  const auto below = target.lexically_relative(source);
  if (!below.empty() && *below.begin() != "..")
    return InvalidArgument("{}: it lies within {}: expected a directory of its own", to, from);
  return absl::OkStatus();
}

}  // namespace

Bytes WithTileIndex(Bytes file, const Limits& limits, Buffer& converted, IndexCounts& counts) {
  const absl::StatusOr<ImageHead> head = ReadImageHead(file, limits);
  absl::Status status = head.status();
  if (head.ok() && head->codec == Codec::kJpeg) status = AddTileIndex(file, head->jpeg, converted);
  const bool indexed = status.ok() && head->codec == Codec::kJpeg;
  ++(indexed ? counts.indexed : counts.copied);
  if (absl::IsDataLoss(status)) ++counts.damaged;
  return indexed ? converted.bytes() : file;
}

absl::StatusOr<IndexCounts> IndexFolder(const std::string& from, const std::string& to, const Limits& limits) {
  LS_RETURN_IF_ERROR(CheckApart(from, to));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Source> source, OpenFolder(from));
  if (source->format().kind != ItemKind::kImage)
    return InvalidArgument("{}: no image in it, only sounds: expected JPEGs", from);
  IndexCounts counts;
  counts.images = source->size();
  for (const auto& [name, count] : source->counters()) counts.not_taken += count;
  Buffer bytes, converted;
  std::vector<absl::Status> unread;
  for (uint64_t i = 0; i < source->size(); ++i) {
    if (absl::Status read = source->Read(i, bytes); !read.ok()) {
      unread.push_back(std::move(read));
      continue;
    }
    const Bytes written = WithTileIndex(bytes.bytes(), limits, converted, counts);
    counts.bytes_before += bytes.size();
    counts.bytes_after += written.size();
    const std::string key = source->item(i).key, path = to + "/" + key;
    LS_RETURN_IF_ERROR(MakeDirectory(fs::path(path).parent_path().string()));
    LS_RETURN_IF_ERROR(WriteFileAtomically(path, {reinterpret_cast<const char*>(written.data()), written.size()}));
    std::error_code ignored;  // then only we may read it
    fs::permissions(path, fs::status(from + "/" + key, ignored).permissions(), ignored);
  }
  if (unread.empty()) return counts;
  return MakeError(unread.front().code(),
                   fmt::format("{} of {} images could not be read and are missing in {}, so items have other "
                               "numbers there: mend or remove them, and begin anew. The first: {}",
                               unread.size(), counts.images, to, Message(unread.front())));
}

Json ToJson(const IndexCounts& counts) {
  return Json{
      {"images", counts.images},          {"indexed", counts.indexed},     {"copied_as_they_are", counts.copied},
      {"damaged", counts.damaged},        {"not_taken", counts.not_taken}, {"bytes_before", counts.bytes_before},
      {"bytes_after", counts.bytes_after}};
}

}  // namespace lockstep::prepare
