// The sums of a slot that is nowhere as a whole: its pieces come one by one, in any order, and what is between them is
// zeros, as in a slot. Invariant: they are those of the same bytes in memory (slot_sums_test.cc). Cost: a CRC pass over
// the pieces, and 2 KiB beside some 60 bytes for each. Pure.
//
//   SlotSums sums(point, slot_bytes);
//   sums.Add(tensor.slot_offset, piece, ls_crc32c(0, piece.data(), piece.size()));
//   if (sums.Crc() != file.slot_crc32c) ...
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "lockstep/checkpoint/restore.h"
#include "lockstep/client/proof.h"

namespace lockstep::checkpoint {

class SlotSums {
 public:
  SlotSums(const Point& point, uint64_t slot_bytes);

  // Of CRC `crc`, which whoever reads it needs for the file too. Pieces lie in the slot and do not overlap.
  void Add(uint64_t offset, std::span<const std::byte> piece, uint32_t crc);
  uint32_t Crc() const;
  uint32_t Proof() const;  // of freshness, as ls_proof()

 private:
  struct Piece {
    uint64_t bytes = 0;
    uint32_t crc = 0;
  };

  ls_checkpoint id_;
  uint64_t slot_bytes_;
  std::map<uint64_t, Piece> pieces_;  // by offset
  std::array<std::array<std::byte, LS_PROOF_BYTES>, LS_PROOF_PLACES> samples_{};
};

}  // namespace lockstep::checkpoint
