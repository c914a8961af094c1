#include "lockstep/checkpoint/rank_file.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/slot_sums.h"
#include "lockstep/client/client.h"
#include "lockstep/client/copy.h"

namespace lockstep::checkpoint {
namespace {

uint32_t CrcOf(std::span<const std::byte> bytes) { return ls_crc32c(0, bytes.data(), bytes.size()); }

}  // namespace

absl::Status CheckCrc(const std::string& what, uint32_t found, uint32_t expected, uint64_t bytes) {
  if (found == expected) return absl::OkStatus();
  return DataLoss("{} has CRC {:#010x}, expected {:#010x}, over {} bytes", what, found, expected, bytes);
}

absl::StatusOr<RankFile> RankFile::Open(Disk& disk, std::string path, const Point& point, const ManifestFile& file) {
  RankFile rank(disk, std::move(path), point, file);
  LS_RETURN_IF_ERROR(rank.ReadHead());
  return rank;
}

absl::Status RankFile::ReadHead() {
  std::vector<std::byte> text(std::min<uint64_t>(8, file_.bytes));
  LS_RETURN_IF_ERROR(disk_.Read(path_, 0, text));
  const absl::StatusOr<uint64_t> head_bytes = HeadBytes(text, file_.bytes);
  if (!head_bytes.ok()) return At(path_, head_bytes.status());
  text.resize(*head_bytes);
  LS_RETURN_IF_ERROR(disk_.Read(path_, 0, text));
  absl::StatusOr<Head> head = ParseHead(text, file_.bytes);
  if (!head.ok()) return At(path_, head.status());
  const absl::StatusOr<std::vector<Tensor>> table = ReadTable(head->meta, file_.slot_bytes);
  if (!table.ok()) return At(path_, table.status());
  if (head->meta.size() != file_.slot_meta_bytes)
    return DataLoss("{}: its meta part has {} bytes, the manifest says {}", path_, head->meta.size(),
                    file_.slot_meta_bytes);
  data_begin_ = head->data_begin;
  head_crc_ = CrcOf(text);
  meta_ = std::move(head->meta);
  order_ = FileOrder(*table);
  return absl::OkStatus();
}

// What was rebuilt is summed, not what was read.
absl::Status RankFile::Load(std::span<std::byte> slot) const {
  LS_CHECK(slot.size() == file_.slot_bytes, "{} of {} bytes", slot.size(), file_.slot_bytes);
  std::ranges::copy(meta_, slot.begin());
  uint32_t crc = head_crc_;
  LS_RETURN_IF_ERROR(ReadTensors(
      [&](uint64_t offset, size_t bytes) { return slot.subspan(offset, bytes); },
      [&](uint64_t, std::span<const std::byte> piece) { crc = ls_crc32c(crc, piece.data(), piece.size()); }));
  const uint32_t proof = ls_proof(point_.epoch.value(), point_.step.value(), slot.data(), slot.size());
  return Compare({crc, CrcOf(slot), proof});
}

absl::Status RankFile::Verify() const {
  SlotSums sums(point_, file_.slot_bytes);
  sums.Add(0, meta_, CrcOf(meta_));
  std::vector<std::byte> memory;
  uint32_t crc = head_crc_;
  const auto room = [&](uint64_t, size_t bytes) {
    memory.resize(std::max(memory.size(), bytes));
    return std::span(memory).first(bytes);
  };
  LS_RETURN_IF_ERROR(ReadTensors(room, [&](uint64_t offset, std::span<const std::byte> piece) {
    const uint32_t own = CrcOf(piece);
    crc = ls_crc32c_join(crc, own, piece.size());
    sums.Add(offset, piece, own);
  }));
  return Compare({crc, sums.Crc(), sums.Proof()});
}

// By pieces: each is tried anew where a store is busy.
absl::Status RankFile::ReadTensors(const Room& room, const Seen& seen) const {
  for (const Tensor& tensor : order_) {
    for (uint64_t done = 0; done < tensor.bytes;) {
      const uint64_t offset = tensor.slot_offset + done;
      const std::span<std::byte> piece = room(offset, std::min<uint64_t>(kPiece, tensor.bytes - done));
      LS_RETURN_IF_ERROR(disk_.Read(path_, data_begin_ + tensor.file_offset + done, piece));
      seen(offset, piece);
      done += piece.size();
    }
  }
  return absl::OkStatus();
}

absl::Status RankFile::Compare(const Sums& sums) const {
  LS_RETURN_IF_ERROR(CheckCrc(path_, sums.file, file_.crc32c, file_.bytes));
  LS_RETURN_IF_ERROR(CheckCrc(path_ + ", as a slot,", sums.slot, file_.slot_crc32c, file_.slot_bytes));
  if (file_.slot_proof == 0 || file_.slot_proof == sums.proof) return absl::OkStatus();
  return DataLoss("{}: it is not the state after step {} of epoch {}", path_, point_.step.value(),
                  point_.epoch.value());
}

}  // namespace lockstep::checkpoint
