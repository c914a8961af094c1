#include "lockstep/prepare/folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>

#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

struct Found {
  std::string folder;  // below the root: "" or "cat/" or "cat/more/"; of a list, also somewhere else, whole
  std::string name;    // of a URL, with its query
  int64_t label = -1;
  ItemKind kind = ItemKind::kImage;
};

class Folder final : public Source {
 public:
  explicit Folder(std::string root) : root_(std::move(root)), prefix_(root_.empty() ? "" : root_ + "/") {}

  absl::Status Scan();
  absl::Status TakeAll(const std::vector<std::string>& paths);
  uint64_t size() const override { return found_.size(); }
  Item item(uint64_t index) const override {
    const Found& file = found_[index];
    return {file.folder + NameOf(file), file.label};
  }
  uint64_t BytesOf(uint64_t index) const override {
    struct stat info{};
    return stat(PathOf(index).c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  }
  absl::Status Read(uint64_t index, Buffer& bytes) const override {
    const std::string path = PathOf(index);
    return IsUrl(path) ? files_->ReadRemote(path, bytes) : ReadWhole(path, bytes);
  }

 private:
  std::string PathOf(uint64_t index) const {
    const Found& file = found_[index];
    return (IsElsewhere(file.folder) ? "" : prefix_) + file.folder + file.name;
  }
  // Without a query.
  std::string NameOf(const Found& file) const {
    return IsUrl(prefix_) || IsUrl(file.folder) ? file.name.substr(0, file.name.find('?')) : file.name;
  }
  static bool IsElsewhere(const std::string& folder) { return IsUrl(folder) || folder.starts_with('/'); }
  absl::Status ScanFlat();
  absl::Status ScanClass(const std::string& name, int64_t label);
  void Take(Found file);
  absl::Status Settle();

  std::string root_, prefix_;
  std::vector<Found> found_;
  uint64_t others_ = 0;
};

bool IsBelow(const fs::directory_entry& entry) {
  std::error_code ignored;  // what can't be looked at is no directory
  return entry.is_directory(ignored);
}

void Folder::Take(Found file) {
  const std::optional<ItemKind> kind = KindOfName(NameOf(file));
  if (!kind) {
    ++others_;
    return;
  }
  file.kind = *kind;
  found_.push_back(std::move(file));
}

absl::Status Folder::ScanFlat() {
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    if (IsBelow(*it)) {
      classes_.push_back(it->path().filename().string());
    } else {
      Take({"", it->path().filename().string(), -1});
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
    Take({below + "/", it->path().filename().string(), label});
  }
  return error ? ErrnoError(error.value(), base.string()) : absl::OkStatus();
}

absl::Status Folder::Scan() {
  LS_RETURN_IF_ERROR(ScanFlat());
  std::sort(classes_.begin(), classes_.end());
  if (!classes_.empty()) {
    counters_.emplace_back("images_outside_of_classes", found_.size());
    found_.clear();
  }
  for (size_t i = 0; i < classes_.size(); ++i) LS_RETURN_IF_ERROR(ScanClass(classes_[i], static_cast<int64_t>(i)));
  return Settle();
}

absl::Status Folder::TakeAll(const std::vector<std::string>& paths) {
  std::map<std::string, std::vector<Found>> by_class;
  for (const std::string& path : paths) {
    const bool is_below = path.starts_with(prefix_);
    const std::string name = is_below ? path.substr(prefix_.size()) : path;
    const size_t slash = name.rfind('/', name.find('?'));
    const std::string folder = slash == std::string::npos ? "" : name.substr(0, slash + 1);
    by_class[is_below ? folder.substr(0, folder.find('/')) : ""].push_back({folder, name.substr(folder.size())});
  }
  for (auto& [name, files] : by_class) {
    if (!name.empty()) classes_.push_back(name);
    const int64_t label = static_cast<int64_t>(classes_.size()) - 1;
    for (Found& file : files) {
      file.label = label;
      Take(std::move(file));
    }
    if (name.empty() && by_class.size() > 1) {
      counters_.emplace_back("images_outside_of_classes", found_.size());
      found_.clear();
    }
  }
  return Settle();
}

// Of one kind, in order.
absl::Status Folder::Settle() {
  if (found_.empty())
    return InvalidArgument(
        "{}: no image in it: expected .jpg, .jpeg, .png or .webp files (or, of sound, .flac or .wav), or folders of "
        "them",
        root_);
  const auto is_image = [](const Found& file) { return file.kind == ItemKind::kImage; };
  if (std::any_of(found_.begin(), found_.end(), is_image)) {
    others_ += std::erase_if(found_, [&](const Found& file) { return !is_image(file); });
  } else {
    format_.kind = ItemKind::kSound;
  }
  std::sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
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

absl::StatusOr<std::unique_ptr<Source>> OpenListed(const std::string& list, const std::vector<std::string>& paths) {
  const std::string place(WithoutQuery(list));
  const size_t slash = place.rfind('/');
  auto folder = std::make_unique<Folder>(slash == std::string::npos ? "" : place.substr(0, slash));
  LS_RETURN_IF_ERROR(folder->TakeAll(paths));
  return std::unique_ptr<Source>(std::move(folder));
}

}  // namespace lockstep::prepare
