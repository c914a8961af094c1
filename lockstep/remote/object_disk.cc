#include "lockstep/remote/object_disk.h"

#include <algorithm>

#include "lockstep/checkpoint/store.h"

namespace lockstep::remote {
namespace {

using checkpoint::kIncoming;
using checkpoint::kManifestFile;
using checkpoint::kOutgoing;

// S3 takes 10,000 parts; beyond half of them (40 GB) they grow, up to 360 GB.
constexpr size_t kPart = 8 << 20, kLargePart = 64 << 20, kSmallParts = 5000;

std::string_view Bare(std::string_view name) {
  for (const std::string_view mark : {kIncoming, kOutgoing}) {
    if (name.starts_with(mark)) return name.substr(mark.size());
  }
  return name;
}

// One object of any size: at once if it is small, else in parts.
class ObjectFile final : public checkpoint::DiskFile {
 public:
  ObjectFile(S3& s3, std::string key) : s3_(s3), key_(std::move(key)) {}
  ~ObjectFile() override {
    if (!upload_.empty()) (void)s3_.AbortParts(key_, upload_);  // else the store keeps them for ever, and bills them
  }

  absl::Status Append(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const size_t full = etags_.size() < kSmallParts ? kPart : kLargePart;
      const auto piece = data.first(std::min(full - held_.size(), data.size()));
      held_.insert(held_.end(), piece.begin(), piece.end());
      data = data.subspan(piece.size());
      if (held_.size() == full) LS_RETURN_IF_ERROR(PutPart());
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (upload_.empty()) return s3_.Put(key_, held_);
    if (!held_.empty()) LS_RETURN_IF_ERROR(PutPart());
    LS_RETURN_IF_ERROR(s3_.EndParts(key_, upload_, etags_));
    upload_.clear();
    return absl::OkStatus();
  }

 private:
  absl::Status PutPart() {
    if (upload_.empty()) {
      LS_ASSIGN_OR_RETURN(upload_, s3_.BeginParts(key_));
    }
    LS_ASSIGN_OR_RETURN(std::string etag, s3_.PutPart(key_, upload_, etags_.size() + 1, held_));
    etags_.push_back(std::move(etag));
    held_.clear();
    return absl::OkStatus();
  }

  S3& s3_;
  std::string key_, upload_;  // upload_: empty, not in parts
  std::vector<std::byte> held_;
  std::vector<std::string> etags_;
};

}  // namespace

class WaitingManifest final : public checkpoint::DiskFile {
 public:
  explicit WaitingManifest(std::string& text) : text_(text) { text_.clear(); }
  absl::Status Append(std::span<const std::byte> data) override {
    text_.append(reinterpret_cast<const char*>(data.data()), data.size());
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }

 private:
  std::string& text_;
};

std::string ObjectDisk::KeyOf(const std::string& path) const {
  if (path.size() <= root_.size()) return prefix_;
  return prefix_ + std::string(Bare(std::string_view(path).substr(root_.size() + 1)));
}

absl::StatusOr<std::unique_ptr<checkpoint::DiskFile>> ObjectDisk::Create(const std::string& path) {
  std::string key = KeyOf(path);
  writes_ = true;
  if (path.ends_with(std::string("/") + kManifestFile)) return std::make_unique<WaitingManifest>(waiting_[key]);
  return std::make_unique<ObjectFile>(s3_, std::move(key));
}

absl::Status ObjectDisk::Rename(const std::string& from, const std::string& to) {
  const std::string key = KeyOf(from) + "/" + kManifestFile;
  if (to == root_ + "/" + std::string(kOutgoing) + from.substr(root_.size() + 1)) return s3_.Remove(key);
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return FailedPrecondition("{} has no manifest to put", from);
  const std::string text = waiting->second;
  waiting_.erase(waiting);
  return s3_.Put(key, std::as_bytes(std::span(text.data(), text.size())));
}

absl::Status ObjectDisk::RemoveFile(const std::string& path) {
  waiting_.erase(KeyOf(path));
  return s3_.Remove(KeyOf(path));
}

// What a killed writer left of a file in parts is seen by no listing.
absl::Status ObjectDisk::RemoveDirectory(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::vector<S3::Upload> uploads, s3_.Uploads(KeyOf(path) + "/"));
  for (const S3::Upload& upload : uploads) LS_RETURN_IF_ERROR(s3_.AbortParts(upload.key, upload.id));
  return absl::OkStatus();
}

// By a listing: a no that only a store of S3 can give. Whatever may answer 404 to HEAD.
absl::StatusOr<bool> ObjectDisk::HasManifest(const std::string& folder_key) {
  const std::string key = folder_key + "/" + kManifestFile;
  LS_ASSIGN_OR_RETURN(const S3::Listing listing, s3_.List(key));
  return std::find(listing.keys.begin(), listing.keys.end(), key) != listing.keys.end();
}

absl::StatusOr<std::vector<std::string>> ObjectDisk::ListRoot() {
  LS_ASSIGN_OR_RETURN(const S3::Listing listing, s3_.List(prefix_));
  std::vector<std::string> names;
  for (const std::string& key : listing.keys) names.push_back(key.substr(prefix_.size()));
  for (const std::string& folder : listing.folders) {
    const std::string name = folder.substr(prefix_.size(), folder.size() - prefix_.size() - 1);
    if (!checkpoint::PointOf(name)) continue;
    LS_ASSIGN_OR_RETURN(const bool sealed, HasManifest(prefix_ + name));
    names.push_back(sealed ? name : std::string(kIncoming) + name);
  }
  if (writes_) AddUploads(names);  // who only reads may have no right to list them
  return names;
}

// A folder of which a killed writer left nothing but parts of a file.
void ObjectDisk::AddUploads(std::vector<std::string>& names) {
  const absl::StatusOr<std::vector<S3::Upload>> uploads = s3_.Uploads(prefix_);
  if (!uploads.ok()) return;  // a right of its own, and not in every store: then they stay
  for (const S3::Upload& upload : *uploads) {
    if (!upload.key.starts_with(prefix_)) continue;
    const std::string name = upload.key.substr(prefix_.size(), upload.key.find('/', prefix_.size()) - prefix_.size());
    const std::string incoming = std::string(kIncoming) + name;
    const bool known =
        std::any_of(names.begin(), names.end(), [&](const std::string& one) { return Bare(one) == name; });
    if (checkpoint::PointOf(name) && !known) names.push_back(incoming);
  }
}

absl::StatusOr<std::vector<std::string>> ObjectDisk::List(const std::string& path) {
  if (path == root_) return ListRoot();
  const std::string name = path.substr(root_.size() + 1), folder = KeyOf(path) + "/";
  if (name != Bare(name)) {  // of a sealed one there is neither
    LS_ASSIGN_OR_RETURN(const bool sealed, HasManifest(KeyOf(path)));
    if (sealed) return NotFound("{}: not there", path);
  }
  // However deep: a name may have slashes in it, and is that of an object.
  LS_ASSIGN_OR_RETURN(const S3::Listing listing, s3_.List(folder, S3::Depth::kAll));
  std::vector<std::string> names;
  for (const std::string& key : listing.keys) names.push_back(key.substr(folder.size()));
  return names;
}

}  // namespace lockstep::remote
