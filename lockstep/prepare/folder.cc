#include "lockstep/prepare/folder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

struct Found {
  std::string folder;  // below the root: "" or "cat/" or "cat/more/"
  std::string name;
  int64_t label;
  ItemKind kind;
};

class Folder final : public Source {
 public:
  explicit Folder(std::string root) : root_(std::move(root)) {}

  absl::Status Scan();
  uint64_t size() const override { return files_.size(); }
  Item item(uint64_t index) const override {
    const Found& file = files_[index];
    return {file.folder + file.name, file.label};
  }
  absl::Status Read(uint64_t index, Buffer& bytes) const override {
    const Found& file = files_[index];
    return ReadWhole(root_ + "/" + file.folder + file.name, bytes);
  }

 private:
  absl::Status ScanFlat();
  absl::Status ScanClass(const std::string& name, int64_t label);
  void Take(std::string folder, std::string name, int64_t label);

  std::string root_;
  std::vector<Found> files_;
  uint64_t others_ = 0;
};

bool IsBelow(const fs::directory_entry& entry) {
  std::error_code ignored;  // what can't be looked at is no directory
  return entry.is_directory(ignored);
}

void Folder::Take(std::string folder, std::string name, int64_t label) {
  if (const std::optional<ItemKind> kind = KindOfName(name)) {
    files_.push_back({std::move(folder), std::move(name), label, *kind});
  } else {
    ++others_;
  }
}

absl::Status Folder::ScanFlat() {
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    if (IsBelow(*it)) {
      classes_.push_back(it->path().filename().string());
    } else {
      Take("", it->path().filename().string(), -1);
    }
  }
  return error ? ErrnoError(error.value(), root_) : absl::OkStatus();
}

absl::Status Folder::ScanClass(const std::string& name, int64_t label) {
  const fs::path base = fs::path(root_) / name;
  std::error_code error;
  constexpr auto kOptions = fs::directory_options::follow_directory_symlink;
  constexpr int kDeepest = 40;  // a link to a folder above it would lead on for ever
  for (fs::recursive_directory_iterator it(base, kOptions, error), end; !error && it != end; it.increment(error)) {
    if (it.depth() > kDeepest) return InvalidArgument("{}: folders more than {} deep", it->path().string(), kDeepest);
    if (IsBelow(*it)) continue;
    const std::string below = it->path().parent_path().lexically_relative(root_).string();
    Take(below + "/", it->path().filename().string(), label);
  }
  return error ? ErrnoError(error.value(), base.string()) : absl::OkStatus();
}

absl::Status Folder::Scan() {
  LS_RETURN_IF_ERROR(ScanFlat());
  std::sort(classes_.begin(), classes_.end());
  if (!classes_.empty()) {
    counters_.emplace_back("images_outside_of_classes", files_.size());
    files_.clear();
  }
  for (size_t i = 0; i < classes_.size(); ++i) LS_RETURN_IF_ERROR(ScanClass(classes_[i], static_cast<int64_t>(i)));
  if (files_.empty())
    return InvalidArgument(
        "{}: no image in it: expected .jpg, .jpeg, .png or .webp files (or, of sound, .flac or .wav), or folders of "
        "them",
        root_);
  const auto is_image = [](const Found& file) { return file.kind == ItemKind::kImage; };
  if (std::any_of(files_.begin(), files_.end(), is_image)) {
    others_ += std::erase_if(files_, [&](const Found& file) { return !is_image(file); });
  } else {
    format_.kind = ItemKind::kSound;
  }
  std::sort(files_.begin(), files_.end(), [](const Found& a, const Found& b) {
    return std::tie(a.label, a.folder, a.name) < std::tie(b.label, b.folder, b.name);
  });
  counters_.emplace_back("files_of_other_kinds", others_);
  return absl::OkStatus();
}

}  // namespace

std::optional<ItemKind> KindOfName(const std::string& name) {
  std::string extension = fs::path(name).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  for (const char* image : {".jpg", ".jpeg", ".png", ".webp"})
    if (extension == image) return ItemKind::kImage;
  if (extension == ".flac" || extension == ".wav") return ItemKind::kSound;
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<Source>> OpenFolder(const std::string& path) {
  auto folder = std::make_unique<Folder>(path);
  LS_RETURN_IF_ERROR(folder->Scan());
  return std::unique_ptr<Source>(std::move(folder));
}

}  // namespace lockstep::prepare
