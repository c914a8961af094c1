// Objects behind S3's protocol as the disk that checkpoint::Store works on. There are no directories to rename there,
// so a checkpoint is there once its manifest is: of ".incoming_X" and of "X" the files are the same objects, the
// manifest written to ".incoming_X" waits in memory, and renaming that to X puts it. Renaming X to ".outgoing_X"
// removes it. So at every moment a listing shows a checkpoint whole, or as leftovers that Store::ClearLeftovers
// removes. Paths begin with the root, "s3://BUCKET[/PREFIX]". Nothing else may write there. One thread at a time.
#pragma once

#include <map>
#include <string>

#include "lockstep/checkpoint/disk.h"
#include "lockstep/remote/s3.h"

namespace lockstep::remote {

class ObjectDisk final : public checkpoint::Disk {
 public:
  ObjectDisk(S3 s3, std::string root, std::string prefix)
      : s3_(std::move(s3)), root_(std::move(root)), prefix_(std::move(prefix)) {}

  absl::Status MakeDirectory(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<checkpoint::DiskFile>> Create(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveFile(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string&) override { return absl::OkStatus(); }
  // What lies in a checkpoint, however deep, is a file.
  bool IsDirectory(const std::string& path) override { return path.find('/', root_.size() + 1) == std::string::npos; }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<uint64_t> Size(const std::string& path) override { return s3_.Size(KeyOf(path)); }
  absl::Status Read(const std::string& path, uint64_t offset, std::span<std::byte> data) override {
    return s3_.Read(KeyOf(path), offset, data);
  }

 private:
  friend class WaitingManifest;
  std::string KeyOf(const std::string& path) const;  // without .incoming_ or .outgoing_
  absl::StatusOr<std::vector<std::string>> ListRoot();
  void AddUploads(std::vector<std::string>& names);
  absl::StatusOr<bool> HasManifest(const std::string& folder_key);

  S3 s3_;
  std::string root_, prefix_;                   // prefix_: empty, or ends with "/"
  std::map<std::string, std::string> waiting_;  // manifests by their key
  bool writes_ = false;                         // something was made here
};

}  // namespace lockstep::remote
