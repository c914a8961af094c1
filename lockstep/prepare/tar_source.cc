#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <string_view>

#include "lockstep/base/number.h"
#include "lockstep/base/parallel.h"
#include "lockstep/prepare/folder.h"
#include "lockstep/prepare/tar.h"

namespace lockstep::prepare {
namespace {

constexpr size_t kScanned = 16;  // shards at once: what takes time is waiting for the disk, or for a server

struct Sample {
  uint32_t shard;
  ItemKind kind;
  bool is_labelled;
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

// Such as ".a.jpg", or "d/._a.jpg", which macOS writes before "d/a.jpg".
bool IsHidden(const TarMember& member) {
  const std::string_view key = Split(member.name).key;
  return key.empty() || key.ends_with('/');
}

// As Python's int() reads it: with a sign, and blanks around it.
absl::StatusOr<int64_t> LabelIn(const DataFile& file, const TarMember& member) {
  constexpr std::string_view kBlank = " \t\n\v\f\r";
  std::string_view text = member.text;
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlank) + 1);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  if (const auto label = WholeNumber<int64_t>(text)) return *label;
  const std::string found = member.bytes > kMaxShort ? fmt::format("{} bytes", member.bytes)
                                                     : fmt::format("\"{}\"", absl::Utf8SafeCHexEscape(member.text));
  return InvalidArgument("{}: {}: expected a number, found {}", file.path(), member.name, found);
}

// What one shard holds.
class ShardScan {
 public:
  absl::Status Scan(const DataFile& file, uint32_t shard) {
    NearReader near(file);
    LS_ASSIGN_OR_RETURN(TarList list, ListTar(near));
    std::vector<TarMember>& members = list.members;
    no_files = list.others;
    has_end = list.has_end;
    others += std::erase_if(members, IsHidden);
    std::vector<std::string_view> keys;
    for (size_t begin = 0, end = 0; begin < members.size(); begin = end) {
      const std::string_view key = Split(members[begin].name).key;
      while (end < members.size() && Split(members[end].name).key == key) ++end;
      LS_ASSIGN_OR_RETURN(const bool matters, TakeGroup(file, shard, std::span(members).subspan(begin, end - begin)));
      if (matters) keys.push_back(key);
    }
    std::sort(keys.begin(), keys.end());
    const auto same = std::adjacent_find(keys.begin(), keys.end());
    if (same == keys.end()) return absl::OkStatus();
    return InvalidArgument(
        "{}: members of sample {} lie apart, with others between them: expected those of each side by side (tar "
        "--sort=name), and each sample to have its own name",
        file.path(), *same);
  }

  std::vector<Sample> samples;
  uint64_t others = 0, empty = 0;  // members of other kinds; samples with neither image nor sound
  uint64_t further = 0;            // of the kind that their sample has already
  uint64_t no_files = 0;           // links and devices
  bool has_end = true;

 private:
  // Its first image is the item; without one, its first sound. False: it has neither, nor a label.
  absl::StatusOr<bool> TakeGroup(const DataFile& file, uint32_t shard, std::span<const TarMember> group) {
    Sample sample{shard, ItemKind::kSound, false, 0, 0, -1, {}};
    std::set<std::string> names;
    for (const TarMember& member : group) {
      const std::string plain = absl::AsciiStrToLower(member.name);  // A.JPG is a.jpg, as WebDataset has it
      if (!names.insert(plain).second)                               // of another sample, which would get lost
        return InvalidArgument("{}: {} follows another member of that name: expected each sample to have its own name",
                               file.path(), member.name);
      const std::optional<ItemKind> kind = KindOfName(member.name);
      if (Split(plain).extension == "cls") {
        LS_ASSIGN_OR_RETURN(sample.label, LabelIn(file, member));
        sample.is_labelled = true;
      } else if (kind && (sample.name.empty() || *kind < sample.kind)) {
        others += sample.name.empty() ? 0 : 1;
        sample = {shard, *kind, sample.is_labelled, member.offset, member.bytes, sample.label, member.name};
      } else if (kind == sample.kind) {
        ++further;
      } else {
        ++others;
      }
    }
    if (sample.name.empty()) {
      ++empty;
      return sample.is_labelled;
    }
    samples.push_back(std::move(sample));
    return true;
  }
};

class TarShards final : public Source {
 public:
  absl::Status Scan(Files& files, const std::string& what, const std::vector<std::string>& paths);
  void CountBeside(uint64_t beside) {
    if (beside > 0) counters_.emplace_back("files_and_folders_beside_shards", beside);
  }

  uint64_t size() const override { return samples_.size(); }
  std::string KeyOf(uint64_t index) const override {
    const Sample& sample = samples_[index];
    return NameOf(shards_[sample.shard].path()) + "/" + sample.name;
  }
  int64_t LabelOf(uint64_t index) const override { return samples_[index].label; }
  uint64_t BytesOf(uint64_t index) const override { return samples_[index].bytes; }
  absl::Status Read(uint64_t index, Buffer& bytes) const override {
    const Sample& sample = samples_[index];
    const DataFile& shard = shards_[sample.shard];
    LS_RETURN_IF_ERROR(CheckItemBytes(shard.path() + ": " + sample.name, sample.bytes));
    return shard.Read(sample.offset, sample.bytes, bytes);
  }

 private:
  std::vector<DataFile> shards_;
  std::vector<Sample> samples_;
};

absl::Status TarShards::Scan(Files& files, const std::string& what, const std::vector<std::string>& paths) {
  shards_.resize(paths.size());
  std::vector<ShardScan> scans(paths.size());
  std::vector<absl::Status> statuses(paths.size());
  std::atomic<bool> failed = false;  // a server that is away is waited for once, not for each shard
  ParallelFor(paths.size(), kScanned, [&](size_t i, size_t) {
    if (failed) return;
    absl::StatusOr<DataFile> file = files.Open(paths[i]);
    statuses[i] = file.ok() ? scans[i].Scan(*file, static_cast<uint32_t>(i)) : file.status();
    if (file.ok()) shards_[i] = *std::move(file);
    if (!statuses[i].ok()) failed = true;
  });
  for (const absl::Status& status : statuses) LS_RETURN_IF_ERROR(status);
  uint64_t others = 0, empty = 0, further = 0, no_files = 0, endless = 0;
  for (ShardScan& scan : scans) {
    std::move(scan.samples.begin(), scan.samples.end(), std::back_inserter(samples_));
    others += scan.others;
    empty += scan.empty;
    further += scan.further;
    no_files += scan.no_files;
    endless += scan.has_end ? 0 : 1;
  }
  if (samples_.empty()) return InvalidArgument("{}: no image in it, and no sound", WithoutQuery(what));
  const auto is_image = [](const Sample& sample) { return sample.kind == ItemKind::kImage; };
  const bool images = std::any_of(samples_.begin(), samples_.end(), is_image);
  if (images) empty += std::erase_if(samples_, [&](const Sample& sample) { return !is_image(sample); });
  format_.kind = images ? ItemKind::kImage : ItemKind::kSound;
  counters_ = {{"members_of_other_kinds", others}, {images ? "samples_without_image" : "samples_without_sound", empty}};
  uint64_t unlabelled = static_cast<uint64_t>(
      std::count_if(samples_.begin(), samples_.end(), [](const Sample& sample) { return !sample.is_labelled; }));
  if (unlabelled == samples_.size()) unlabelled = 0;  // they need none
  for (const auto& [name, count] : {std::pair{images ? "further_images" : "further_sounds", further},
                                    {"links_and_devices", no_files},
                                    {"shards_without_end", endless},
                                    {"samples_without_label", unlabelled}})
    if (count > 0) counters_.emplace_back(name, count);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> OpenTar(Files& files, const std::string& what,
                                                const std::vector<std::string>& paths, uint64_t beside) {
  auto shards = std::make_unique<TarShards>();
  LS_RETURN_IF_ERROR(shards->Scan(files, what, paths));
  shards->CountBeside(beside);
  return std::unique_ptr<Source>(std::move(shards));
}

}  // namespace lockstep::prepare
