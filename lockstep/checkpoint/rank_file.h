// One rank's file of a checkpoint on disk, read back by pieces: into memory, as the slot that it was made from, or for
// its sums alone. Invariant: both say the same of a file, so what is verified can be loaded. Damage is DataLoss or
// NotFound; any other error says only that it could not be read. Thread rule: that of its disk. Memory: the head, and
// for Verify() one piece, however large the slot is.
//
//   LS_ASSIGN_OR_RETURN(const RankFile rank, RankFile::Open(disk, path, manifest.point, file));
//   LS_RETURN_IF_ERROR(rank.Verify());             // or
//   LS_RETURN_IF_ERROR(rank.Load(slot));           // file.slot_bytes of zeros
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/table.h"

namespace lockstep::checkpoint {

absl::Status CheckCrc(const std::string& what, uint32_t found, uint32_t expected, uint64_t bytes);

class RankFile {
 public:
  // Reads its head. `disk` and `file`, its entry of the manifest, outlive it.
  static absl::StatusOr<RankFile> Open(Disk& disk, std::string path, const Point& point, const ManifestFile& file);

  absl::Status Load(std::span<std::byte> slot) const;
  absl::Status Verify() const;

 private:
  struct Sums {
    uint32_t file = 0, slot = 0, proof = 0;
  };
  // Where a piece of so many bytes is read to, which is at this offset of the slot; and what comes of it.
  using Room = std::function<std::span<std::byte>(uint64_t slot_offset, size_t bytes)>;
  using Seen = std::function<void(uint64_t slot_offset, std::span<const std::byte> piece)>;

  RankFile(Disk& disk, std::string path, const Point& point, const ManifestFile& file)
      : disk_(disk), path_(std::move(path)), point_(point), file_(file) {}
  absl::Status ReadHead();
  absl::Status ReadTensors(const Room& room, const Seen& seen) const;
  absl::Status Compare(const Sums& sums) const;

  Disk& disk_;
  std::string path_;
  Point point_;
  const ManifestFile& file_;
  uint64_t data_begin_ = 0;
  uint32_t head_crc_ = 0;
  std::vector<std::byte> meta_;
  std::vector<Tensor> order_;  // of the file
};

}  // namespace lockstep::checkpoint
