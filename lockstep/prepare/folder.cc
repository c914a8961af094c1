#include "lockstep/prepare/folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string_view>

#include "lockstep/base/number.h"
#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

// Of URLs both as they are sent: escaped, with their query.
struct Found {
  std::string folder;  // below the root: "" or "cat/" or "cat/more/"; of a list, also somewhere else, whole
  std::string name;
  int64_t label = -1;
  ItemKind kind = ItemKind::kImage;
};

// A directory, by whatever path.
using FolderId = std::pair<dev_t, ino_t>;
std::optional<FolderId> IdOf(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FolderId{info.st_dev, info.st_ino};
}

// How much of a path leads to the folder, over links or with ".." though it may be; 0: none does.
class WayTo {
 public:
  explicit WayTo(const std::string& folder) : id_(IdOf(folder)) {}
  size_t In(const std::string& path) {
    const std::string_view folder = std::string_view(path).substr(0, path.rfind('/') + 1);
    if (folder != last_) {
      last_ = folder;
      length_ = Find();
    }
    return length_;
  }

 private:
  size_t Find() const {
    for (size_t end = last_.size(); id_ && end > 0; end = end == 1 ? 0 : last_.rfind('/', end - 2) + 1)
      if (IdOf(last_.substr(0, end)) == id_) return end;
    return 0;
  }

  std::optional<FolderId> id_;
  std::string last_;  // where the last path led: the next is mostly there too
  size_t length_ = 0;
};

char TakeByte(std::string_view& escaped) {
  const bool may_be = escaped.size() > 2 && escaped[0] == '%';
  const auto byte = may_be ? WholeNumber<uint8_t>(escaped.substr(1, 2), 16) : std::nullopt;
  const char taken = byte ? static_cast<char>(*byte) : escaped[0];
  escaped.remove_prefix(byte ? 3 : 1);
  return taken;
}

std::string Unescaped(std::string_view escaped) {
  std::string plain;
  while (!escaped.empty()) plain += TakeByte(escaped);
  return plain;
}

// Whether what `a` stands for comes before what `b` does.
bool IsBefore(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const auto first = static_cast<uint8_t>(TakeByte(a)), second = static_cast<uint8_t>(TakeByte(b));
    if (first != second) return first < second;
  }
  return a.empty() && !b.empty();
}

class Folder final : public Source {
 public:
  explicit Folder(std::string root) : root_(std::move(root)), prefix_(root_.ends_with('/') ? root_ : root_ + "/") {}

  absl::Status Scan();
  absl::Status TakeAll(const std::vector<std::string>& paths);
  uint64_t size() const override { return found_.size(); }
  std::string KeyOf(uint64_t index) const override {
    const Found& file = found_[index];
    return (is_remote() && !IsUrl(file.folder) ? Unescaped(file.folder) : file.folder) + NameOf(file);
  }
  int64_t LabelOf(uint64_t index) const override { return found_[index].label; }
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
  // Without a query, and as a file of this machine would be called.
  std::string NameOf(const Found& file) const {
    if (IsUrl(file.folder)) return file.name.substr(0, file.name.find('?'));
    return is_remote() ? Unescaped(file.name.substr(0, file.name.find('?'))) : file.name;
  }
  bool is_remote() const { return IsUrl(prefix_); }
  static bool IsElsewhere(const std::string& folder) { return IsUrl(folder) || folder.starts_with('/'); }
  absl::Status ScanFlat();
  absl::Status ScanClass(const std::string& name, int64_t label);
  void Take(Found file);
  absl::Status Settle();
  absl::Status CheckClasses() const;

  std::string root_, prefix_;
  std::vector<Found> found_;
  uint64_t others_ = 0, loops_ = 0;
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
  const std::optional<FolderId> root = IdOf(root_);
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    if (!IsBelow(*it)) {
      Take({"", it->path().filename().string(), -1});
    } else if (IdOf(it->path().string()) == root) {
      ++loops_;
    } else {
      classes_.push_back(it->path().filename().string());
    }
  }
  return error ? ErrnoError(error.value(), root_) : absl::OkStatus();
}

absl::Status Folder::ScanClass(const std::string& name, int64_t label) {
  const fs::path base = fs::path(root_) / name;
  std::vector<std::optional<FolderId>> above{IdOf(root_), IdOf(base.string())};  // where it is now
  const size_t outer = above.size();
  std::error_code error;
  constexpr auto kOptions = fs::directory_options::follow_directory_symlink;
  for (fs::recursive_directory_iterator it(base, kOptions, error), end; !error && it != end; it.increment(error)) {
    if (!IsBelow(*it)) {
      const std::string below = it->path().parent_path().lexically_relative(root_).string();
      Take({below + "/", it->path().filename().string(), label});
      continue;
    }
    above.resize(outer + static_cast<size_t>(it.depth()));
    const std::optional<FolderId> id = IdOf(it->path().string());
    if (std::find(above.begin(), above.end(), id) != above.end()) {  // a link would lead on for ever
      ++loops_;
      it.disable_recursion_pending();
    }
    above.push_back(id);
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
  if (loops_ > 0) counters_.emplace_back("links_to_folders_above", loops_);
  return Settle();
}

absl::Status Folder::TakeAll(const std::vector<std::string>& paths) {
  std::map<std::string, std::vector<Found>> by_class;
  WayTo way(root_);
  for (const std::string& path : paths) {
    size_t below = path.starts_with(prefix_) ? prefix_.size() : 0;
    if (!IsUrl(path) && (below == 0 || path.find("../", below) != std::string::npos)) below = way.In(path);
    const std::string name = path.substr(below);
    const size_t slash = name.rfind('/', IsUrl(path) ? name.find('?') : std::string::npos);
    const std::string folder = slash == std::string::npos ? "" : name.substr(0, slash + 1);
    const std::string first = below == 0 || folder.starts_with("../") ? "" : folder.substr(0, folder.find('/'));
    by_class[is_remote() ? Unescaped(first) : first].push_back({folder, name.substr(folder.size())});
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
  const auto in_order = [&](const Found& a, const Found& b) {
    if (!is_remote() || a.label != b.label)
      return std::tie(a.label, a.folder, a.name) < std::tie(b.label, b.folder, b.name);
    return a.folder == b.folder ? IsBefore(a.name, b.name) : IsBefore(a.folder, b.folder);
  };
  std::sort(found_.begin(), found_.end(), in_order);
  const auto same = std::adjacent_find(found_.begin(), found_.end(), std::not_fn(in_order));
  if (same != found_.end())  // by two ways, such as over a link: else the list has been refused already
    return InvalidArgument("{}: the list names {} twice: expected each file once", root_,
                           KeyOf(static_cast<uint64_t>(same - found_.begin())));
  counters_.emplace_back("files_of_other_kinds", others_);
  return CheckClasses();
}

// A folder that is there by chance would give all behind it another label than they have elsewhere. ImageFolder refuses
// it too.
absl::Status Folder::CheckClasses() const {
  std::vector<bool> has_items(classes_.size());
  for (const Found& file : found_)
    if (file.label >= 0) has_items[static_cast<size_t>(file.label)] = true;
  const auto empty = std::find(has_items.begin(), has_items.end(), false);
  if (empty == has_items.end()) return absl::OkStatus();
  const bool images = format_.kind == ItemKind::kImage;
  return InvalidArgument(
      "{}{}: no {} in it: each folder is a class, and those behind it are counted from it: expected it elsewhere",
      prefix_, classes_[static_cast<size_t>(empty - has_items.begin())], images ? "image" : "sound");
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

absl::StatusOr<std::unique_ptr<Source>> OpenListed(const std::string& folder, const std::vector<std::string>& paths) {
  auto listed = std::make_unique<Folder>(folder);
  LS_RETURN_IF_ERROR(listed->TakeAll(paths));
  return std::unique_ptr<Source>(std::move(listed));
}

}  // namespace lockstep::prepare
