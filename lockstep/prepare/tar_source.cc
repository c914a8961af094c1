#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "lockstep/prepare/file_part.h"
#include "lockstep/prepare/folder.h"
#include "lockstep/prepare/tar.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

struct Sample {
  uint32_t shard;
  uint64_t offset, bytes;
  int64_t label;
  std::string name;
};

// "a/b.c/0001.seg.jpg": key "a/b.c/0001", extension "seg.jpg".
struct SplitName {
  std::string_view key, extension;
};
SplitName Split(std::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == std::string_view::npos ? 0 : slash + 1);
  if (dot == std::string_view::npos) return {name, {}};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

class TarShards final : public Source {
 public:
  explicit TarShards(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  absl::Status Scan() {
    for (size_t i = 0; i < paths_.size(); ++i) LS_RETURN_IF_ERROR(ScanShard(static_cast<uint32_t>(i)));
    counters_ = {{"members_of_other_kinds", others_}, {"samples_without_image", without_image_}};
    if (samples_.empty()) return InvalidArgument("{}: no image in it", paths_[0]);
    return absl::OkStatus();
  }

  uint64_t size() const override { return samples_.size(); }
  Item item(uint64_t index) const override {
    const Sample& sample = samples_[index];
    const std::string shard = fs::path(paths_[sample.shard]).filename().string();
    return {shard + "/" + sample.name, sample.label};
  }
  absl::Status Read(uint64_t index, Buffer& bytes) const override {
    const Sample& sample = samples_[index];
    return ReadPart(paths_[sample.shard], sample.offset, sample.bytes, bytes);
  }

 private:
  absl::Status ScanShard(uint32_t shard);
  absl::Status TakeGroup(const PartReader& file, uint32_t shard, std::span<const TarMember> group);

  std::vector<std::string> paths_;
  std::vector<Sample> samples_;
  uint64_t others_ = 0, without_image_ = 0;
};

absl::StatusOr<int64_t> ReadLabel(const PartReader& file, const TarMember& member) {
  constexpr uint64_t kMost = 32;
  std::string text(std::min(member.bytes, kMost), '\0');
  LS_RETURN_IF_ERROR(file.Read(member.offset, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  int64_t label = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  const bool rest = std::any_of(static_cast<const char*>(end), static_cast<const char*>(text.data() + text.size()),
                                [](char c) { return c != '\n' && c != '\r' && c != ' '; });
  if (error != std::errc() || rest) return InvalidArgument("{}: {}: expected a number", file.path(), member.name);
  return label;
}

absl::Status TarShards::TakeGroup(const PartReader& file, uint32_t shard, std::span<const TarMember> group) {
  const TarMember* image = nullptr;
  int64_t label = -1;
  for (const TarMember& member : group) {
    if (Split(member.name).extension == "cls") {
      LS_ASSIGN_OR_RETURN(label, ReadLabel(file, member));
    } else if (image == nullptr && IsImageName(member.name)) {
      image = &member;
    } else {
      ++others_;
    }
  }
  if (image == nullptr) {
    ++without_image_;
    return absl::OkStatus();
  }
  if (image->bytes > kMaxItemBytes) return InvalidArgument("{}: {}: it is too large", file.path(), image->name);
  samples_.push_back({shard, image->offset, image->bytes, label, image->name});
  return absl::OkStatus();
}

absl::Status TarShards::ScanShard(uint32_t shard) {
  LS_ASSIGN_OR_RETURN(const std::vector<TarMember> members, ListTar(paths_[shard]));
  LS_ASSIGN_OR_RETURN(const PartReader file, PartReader::Open(paths_[shard]));
  for (size_t begin = 0, end = 0; begin < members.size(); begin = end) {
    const std::string_view key = Split(members[begin].name).key;
    while (end < members.size() && Split(members[end].name).key == key) ++end;
    LS_RETURN_IF_ERROR(TakeGroup(file, shard, std::span(members).subspan(begin, end - begin)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ShardsIn(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> shards;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".tar") shards.push_back(it->path().string());
  if (error) return ErrnoError(error.value(), path);
  if (shards.empty()) return InvalidArgument("{}: no .tar in it", path);
  std::sort(shards.begin(), shards.end());
  return shards;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> OpenTar(const std::string& path) {
  LS_ASSIGN_OR_RETURN(std::vector<std::string> paths, ShardsIn(path));
  auto shards = std::make_unique<TarShards>(std::move(paths));
  LS_RETURN_IF_ERROR(shards->Scan());
  return std::unique_ptr<Source>(std::move(shards));
}

}  // namespace lockstep::prepare
