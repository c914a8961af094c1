// Checkpoints on disk, one directory each (docs/formats/checkpoint.md). A checkpoint is written into a directory whose
// name begins with ".incoming", synced, and then renamed once; older ones are removed only after that. Invariant
// (store_test.cc tries it for a crash after every operation): the newest valid checkpoint is at every moment the old
// one or the new one, whole. Thread rule: one thread at a time per Store; one process per directory holds the right to
// write (the agent's lock).
//
//   Store store(*disk, "/data/ckpt");
//   LS_RETURN_IF_ERROR(store.Write(image, [&] { return !given_up; }));
//   store.Prune(2);
//   LS_ASSIGN_OR_RETURN(const std::vector<Point> newest_first, store.List());
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// One rank's slot.
struct SlotImage {
  std::span<const std::byte> content;
  uint64_t meta_bytes = 0;
  uint32_t crc32c = 0;
};

// All that is to be written. The memory may change meanwhile: that is found out, and nothing is kept.
struct Image {
  Point point;
  std::string job, layout, written;
  std::vector<SlotImage> slots;  // by rank
};

// Where a slot is rebuilt: told its size, answers memory of zeros.
using MakeSlot = std::function<absl::StatusOr<std::span<std::byte>>(size_t rank, const ManifestFile& file)>;

class Store {
 public:
  // The directory need not exist before Open().
  Store(Disk& disk, std::string directory) : disk_(disk), directory_(std::move(directory)) {}
  const std::string& directory() const { return directory_; }

  // By name alone, newest first. What has another name is not ours and is left alone.
  absl::StatusOr<std::vector<Point>> List() const;
  // Reads the manifest and compares the sizes of the files. An error begins with the checkpoint's path.
  absl::StatusOr<Manifest> ReadManifest(const Point& point) const;
  // ... and the CRCs of all files.
  absl::Status Verify(const Point& point) const;
  // Rebuilds every rank's slot and verifies it.
  absl::Status Load(const Manifest& manifest, const MakeSlot& make) const;

  // Makes the image durable. `go_on` is asked between pieces; once it says no, nothing is kept. Refused when there is a
  // newer checkpoint: then the writer is a stale one.
  absl::Status Write(const Image& image, const std::function<bool()>& go_on);
  // Of those that ReadManifest accepts, all but the `keep` newest go. What is damaged stays: a person may want it.
  absl::Status Prune(int keep);
  // What a killed writer left.
  absl::Status ClearLeftovers();

 private:
  std::string PathOf(const Point& point) const { return directory_ + "/" + DirectoryName(point); }
  absl::Status RefuseIfStale(const Point& point) const;
  absl::Status WriteFiles(const std::string& folder, const Image& image, const std::function<bool()>& go_on);
  absl::StatusOr<ManifestFile> WriteSlot(const std::string& path, const SlotImage& slot,
                                         const std::function<bool()>& go_on);
  absl::Status WriteText(const std::string& path, const std::string& text);
  absl::Status Publish(const std::string& folder, const Point& point);
  absl::Status Remove(const Point& point);
  absl::Status RemoveTree(const std::string& folder);
  absl::StatusOr<uint32_t> FileCrc(const std::string& path, uint64_t bytes) const;
  absl::Status LoadSlot(const std::string& path, const ManifestFile& file, std::span<std::byte> slot) const;

  Disk& disk_;
  std::string directory_;
};

}  // namespace lockstep::checkpoint
