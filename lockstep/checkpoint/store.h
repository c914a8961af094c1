// Checkpoints on disk, one directory each (docs/formats/checkpoint.md). Every node writes the files of its ranks into a
// directory whose name begins with ".incoming" and syncs them; one of them adds the manifest, and renames it once;
// older ones are removed only after that. Invariant (store_test.cc tries it for a crash after every operation): the
// newest valid checkpoint is at every moment the old one or the new one, whole. Thread rule: one thread at a time per
// Store; one process per directory holds the right to seal and remove (the lock of node 0's agent).
//
//   Store store(*disk, "/data/ckpt");
//   LS_ASSIGN_OR_RETURN(const std::vector<ManifestFile> files, store.WritePart(part, [&] { return !given_up; }));
//   LS_RETURN_IF_ERROR(store.Seal(manifest, ...));   // once all parts are written: their files, in order of rank
//   store.Prune(2);
//   LS_ASSIGN_OR_RETURN(const std::vector<Point> newest_first, store.List());
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/rank_file.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// What names in the directory begin with while a checkpoint is written or removed.
inline constexpr std::string_view kIncoming = ".incoming_", kOutgoing = ".outgoing_";

// One rank's slot.
struct SlotImage {
  std::span<const std::byte> content;
  uint64_t meta_bytes = 0;
  uint32_t crc32c = 0, proof = 0;
};

// What one node writes. The memory may change meanwhile: that is found out, and nothing of it is kept.
struct Part {
  Point point;
  size_t first_rank = 0;
  std::vector<SlotImage> slots;  // of this rank and the next ones
};

// Whether an error of reading a checkpoint says that it is not whole. Any other one says only that it could not be
// read, and is no reason to take an older one in its place.
bool MeansDamage(const absl::Status& status);
// An error of reading that may be over soon, as that of a file system of the network.
bool MayPass(const absl::Status& status);

// Where a slot is rebuilt: told its size, answers memory of zeros of that size.
using MakeSlot = std::function<absl::StatusOr<std::span<std::byte>>(size_t rank, const ManifestFile& file)>;

// Of the checkpoint in this folder, whatever that is called: the manifest, and that the files have its sizes.
absl::StatusOr<Manifest> ReadManifestIn(Disk& disk, const std::string& folder);

class Store {
 public:
  // The directory need not exist before Open().
  Store(Disk& disk, std::string directory) : disk_(disk), directory_(std::move(directory)) {}
  const std::string& directory() const { return directory_; }

  // By name alone, newest first. What has another name is not ours and is left alone.
  absl::StatusOr<std::vector<Point>> List() const;
  // ReadManifestIn() the point's folder, of which it must be. An error begins with the checkpoint's path.
  absl::StatusOr<Manifest> ReadManifest(const Point& point) const;
  // Of the directory itself, where a checkpoint's is given in its place.
  absl::StatusOr<Manifest> ReadManifestHere() const { return ReadManifestIn(disk_, directory_); }
  // ... and that the slots can be Load()ed, all or every `every`-th from `first` on; of no slot is much held at once.
  absl::Status Verify(const Point& point, size_t first = 0, size_t every = 1) const;
  // Rebuilds the slots of `count` ranks and verifies them.
  absl::Status Load(const Manifest& manifest, size_t first_rank, size_t count, const MakeSlot& make) const;

  // Makes the part durable; what it then is in the manifest. `go_on` is asked between pieces; once it says no, nothing
  // of it is kept. Refused when there is a newer checkpoint: then the writer is a stale one.
  absl::StatusOr<std::vector<ManifestFile>> WritePart(const Part& part, const GoOn& go_on);
  // Makes one checkpoint of the parts. If it fails, none of them is kept. FailedPrecondition: they are not all here.
  absl::Status Seal(const Manifest& manifest, const GoOn& go_on);
  // The parts of one that will not be sealed.
  absl::Status Discard(const Point& point) { return RemoveTree(IncomingOf(point)); }
  // Makes a checkpoint of another store one of this, all sums compared on the way. If it fails, nothing of it is kept.
  // What is here already counts if the sizes of its files are right, or their sums too.
  enum class Here { kBySizes, kBySums };
  absl::Status CopyFrom(const Store& other, const Point& point, const GoOn& go_on, Here here = Here::kBySizes);
  // Of those that ReadManifest accepts, all but the `keep` newest go; one that can't keeps no other one. What is
  // damaged, so far as is seen there or `is_damaged` says, counts for nothing and stays: a person may want it. So does
  // `spare`, which is being read.
  using IsDamaged = std::function<bool(const Point&)>;
  absl::Status Prune(int keep, const std::optional<Point>& spare = std::nullopt, const IsDamaged& is_damaged = nullptr);
  // What a killed writer left. What can't be removed keeps nothing else there, and harms no checkpoint: the error, of
  // the first, is one to tell and not to stop at. `spare_newer`: but for what is newer than every checkpoint here,
  // which may be on its way.
  absl::Status ClearLeftovers(bool spare_newer = false);
  // Both: what belongs behind every checkpoint that was written. Spares what is newer.
  absl::Status Tidy(int keep, const std::optional<Point>& spare = std::nullopt, const IsDamaged& is_damaged = nullptr);

 private:
  std::string PathOf(const Point& point) const { return directory_ + "/" + DirectoryName(point); }
  std::string IncomingOf(const Point& point) const;
  absl::Status RefuseIfStale(const Point& point) const;
  absl::StatusOr<std::vector<ManifestFile>> WriteFiles(const std::string& folder, const Part& part, const GoOn& go_on);
  absl::StatusOr<ManifestFile> WriteSlot(const std::string& path, const SlotImage& slot, const GoOn& go_on);
  absl::Status CopyFiles(const Store& other, const Manifest& manifest, const GoOn& go_on);
  absl::Status CopyFile(const std::string& from, const std::string& to, const ManifestFile& file, Disk& source,
                        const GoOn& go_on);
  absl::Status CheckFiles(const std::string& folder, const Manifest& manifest) const;
  absl::StatusOr<std::unique_ptr<DiskFile>> CreateAnew(const std::string& path);
  absl::Status WriteText(const std::string& path, const std::string& text);
  absl::Status Publish(const std::string& folder, const Manifest& manifest);
  absl::Status Remove(const Point& point);
  absl::Status RemoveTree(const std::string& path);
  absl::StatusOr<RankFile> Open(const Manifest& manifest, size_t rank) const;

  Disk& disk_;
  std::string directory_;
};

}  // namespace lockstep::checkpoint
