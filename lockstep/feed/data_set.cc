#include "lockstep/feed/data_set.h"

#include <algorithm>
#include <cstring>

#include "lockstep/prepare/data_file.h"
#include "lockstep/prepare/preparer.h"

namespace lockstep::feed {
namespace {

// One thread's.
class SourceMaker : public Maker {
 public:
  explicit SourceMaker(const prepare::Source& source) : source_(source) {}
  uint64_t FileBytes(uint64_t item) const final {
    const uint64_t bytes = source_.BytesOf(item);
    return bytes > prepare::kMaxItemBytes ? 0 : bytes;  // it is refused unread
  }
  absl::Status Read(uint64_t item, prepare::Buffer& file) final { return source_.Read(item, file); }

 private:
  const prepare::Source& source_;
};

class ImageMaker final : public SourceMaker {
 public:
  ImageMaker(const prepare::Source& source, const prepare::Limits& limits) : SourceMaker(source), preparer_(limits) {}
  absl::StatusOr<prepare::DecodeMemory> MemoryFor(prepare::Bytes file) override { return preparer_.MemoryFor(file); }
  absl::Status Decode(prepare::Bytes file, prepare::Image& image) override { return preparer_.Decode(file, image); }
  absl::Status Cut(const prepare::Image& image, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                   std::span<uint8_t> out) override {
    LS_RETURN_IF_ERROR(prepare::CheckSize(recipe, image.view.size));
    preparer_.Augment(image.view, recipe, key, out);
    return absl::OkStatus();
  }
  absl::Status Prepare(prepare::Bytes file, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                       std::span<uint8_t> out) override {
    return preparer_.Prepare(file, recipe, key, out);
  }
  prepare::PrepareCounters TakeCounters() override { return preparer_.TakeCounters(); }

 private:
  prepare::Preparer preparer_;
};

class SoundMaker final : public SourceMaker {
 public:
  using SourceMaker::SourceMaker;
  absl::StatusOr<prepare::DecodeMemory> MemoryFor(prepare::Bytes file) override {
    LS_ASSIGN_OR_RETURN(const uint64_t kept, clipper_.KeptBytes(file));
    return prepare::DecodeMemory{kept, kept, 0};
  }
  absl::Status Decode(prepare::Bytes file, prepare::Image& image) override { return clipper_.Keep(file, image.buffer); }
  absl::Status Cut(const prepare::Image& image, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                   std::span<uint8_t> out) override {
    return clipper_.Cut(image.buffer.bytes(), *recipe.clip, key, out);
  }
  absl::Status Prepare(prepare::Bytes file, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                       std::span<uint8_t> out) override {
    return clipper_.Prepare(file, *recipe.clip, key, out);
  }

 private:
  prepare::Clipper clipper_;
};

// Arrays and tokens are what they are; nothing is decoded.
class PlainMaker final : public SourceMaker {
 public:
  using SourceMaker::SourceMaker;
  absl::StatusOr<prepare::DecodeMemory> MemoryFor(prepare::Bytes file) override {
    return prepare::DecodeMemory{file.size(), file.size(), 0};
  }
  absl::Status Decode(prepare::Bytes file, prepare::Image& image) override {
    image.buffer.Assign(file);
    return absl::OkStatus();
  }
  absl::Status Cut(const prepare::Image& image, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                   std::span<uint8_t> out) override {
    return Prepare(image.buffer.bytes(), recipe, key, out);
  }
  absl::Status Prepare(prepare::Bytes file, const prepare::Recipe&, const prepare::AugmentKey&,
                       std::span<uint8_t> out) override {
    if (file.size() != out.size()) return DataLoss("an item of {} bytes, expected {}", file.size(), out.size());
    std::memcpy(out.data(), file.data(), out.size());
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<DataSet> DataSet::Open(const std::string& name, const prepare::SourceSpec& spec,
                                      const prepare::Limits& limits) {
  LS_ASSIGN_OR_RETURN(std::unique_ptr<prepare::Source> source, prepare::OpenSource(spec));
  std::string path(prepare::WithoutQuery(spec.path));  // which is shown
  if (source->size() == 0) return InvalidArgument("{}: there is no item in it", path);
  return DataSet(name, std::move(path), std::move(source), limits);
}

DataSet::DataSet(std::string name, std::string path, std::unique_ptr<prepare::Source> source,
                 const prepare::Limits& limits)
    : name_(std::move(name)), path_(std::move(path)), source_(std::move(source)), limits_(limits) {}

std::unique_ptr<Maker> DataSet::NewMaker() const {
  if (kind() == prepare::ItemKind::kImage) return std::make_unique<ImageMaker>(*source_, limits_);
  if (kind() == prepare::ItemKind::kSound) return std::make_unique<SoundMaker>(*source_);
  return std::make_unique<PlainMaker>(*source_);
}

uint64_t DataSet::ItemBytes(const prepare::Recipe& recipe) const {
  return is_cut() ? recipe.bytes() : source_->format().bytes;
}

std::vector<int64_t> DataSet::ItemShape(const prepare::Recipe& recipe) const {
  if (!is_cut()) return source_->format().shape;
  if (recipe.clip) return {recipe.clip->channels, recipe.clip->frames};
  return {recipe.size.height, recipe.size.width, 3};
}

std::string DataSet::ItemType(const prepare::Recipe& recipe) const {
  if (!is_cut()) return source_->format().dtype;
  if (recipe.clip) return recipe.clip->int16 ? "<i2" : "<f4";
  return "|u1";
}

absl::Status DataSet::CheckRecipe(const prepare::Recipe& recipe) const {
  const bool sounds = kind() == prepare::ItemKind::kSound;
  if (!is_cut() || sounds == recipe.clip.has_value()) return absl::OkStatus();
  return InvalidArgument("transform: {} holds {}: expected {}", name_, sounds ? "sounds" : "images",
                         sounds ? "a RandomClip or a CenterClip" : "a RandomResizedCrop or a CenterCrop");
}

// Names of a set that has them, numbers of any.
absl::StatusOr<std::set<int64_t>> DataSet::WantedLabels(const Subset& where) const {
  const std::vector<std::string>& classes = source_->classes();
  const std::string known =
      classes.empty() ? "numbers at most" : fmt::format("{}, such as {}, number 0", classes.size(), classes[0]);
  const uint64_t end = classes.empty() ? INT64_MAX : classes.size();
  std::set<int64_t> wanted;
  for (const std::string& name : where.names) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end())
      return InvalidArgument("where: data set {} has no label \"{}\"; it has {}", name_, name, known);
    wanted.insert(found - classes.begin());
  }
  for (const uint64_t number : where.labels) {
    if (number >= end) return InvalidArgument("where: data set {} has no label {}; it has {}", name_, number, known);
    wanted.insert(static_cast<int64_t>(number));
  }
  return wanted;
}

absl::StatusOr<sampling::ItemSet> DataSet::SetOf(const Subset& where) const {
  if (where.mask && *where.mask != items())
    return InvalidArgument("where: a mask of {} items, and {} has {}: expected one value for each", *where.mask, name_,
                           items());
  if (where.listed) return SetFromIds(*where.listed, items());
  const uint64_t begin = where.begin.value_or(0), end = where.end.value_or(items());
  if (begin >= end || end > items())
    return InvalidArgument("where: items from {} to before {}: expected some of the {} of {}", begin, end, items(),
                           name_);
  const sampling::ItemRange range{begin, end - 1};
  if (where.names.empty() && where.labels.empty()) return sampling::ItemSet(std::span(&range, 1));
  LS_ASSIGN_OR_RETURN(const std::set<int64_t> wanted, WantedLabels(where));
  std::vector<uint64_t> ids;
  for (uint64_t item = begin; item < end; ++item) {
    if (wanted.contains(label(item))) ids.push_back(item);
  }
  if (ids.empty()) return InvalidArgument("where: no item of {} is in it", name_);
  return SetFromIds(std::move(ids), items());
}

absl::StatusOr<sampling::ItemSet> SetFromIds(std::vector<uint64_t> ids, uint64_t items) {
  std::sort(ids.begin(), ids.end());
  if (ids.empty()) return InvalidArgument("where: an empty list of ids");
  if (ids.back() >= items)
    return InvalidArgument("where: item {} is beyond the data set, whose last is {}", ids.back(), items - 1);
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) return InvalidArgument("where: item {} is listed twice", *twice);
  std::vector<sampling::ItemRange> ranges;
  for (const uint64_t id : ids) {
    if (!ranges.empty() && ranges.back().last + 1 == id)
      ranges.back().last = id;
    else
      ranges.push_back({id, id});
  }
  return sampling::ItemSet(ranges);
}

}  // namespace lockstep::feed
