#include "lockstep/checkpoint/slot_sums.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/client/client.h"
#include "lockstep/client/copy.h"

namespace lockstep::checkpoint {
namespace {

uint32_t WithZeros(uint32_t crc, uint64_t count) {
  static constexpr std::array<std::byte, 4 * LS_TENSOR_ALIGN> kZeros{};
  for (; count > kZeros.size(); count -= kZeros.size()) crc = ls_crc32c(crc, kZeros.data(), kZeros.size());
  return ls_crc32c(crc, kZeros.data(), count);
}

}  // namespace

SlotSums::SlotSums(const Point& point, uint64_t slot_bytes)
    : id_{point.epoch.value(), point.step.value()}, slot_bytes_(slot_bytes) {}

void SlotSums::Add(uint64_t offset, std::span<const std::byte> piece, uint32_t crc) {
  if (piece.empty()) return;
  const uint64_t end = offset + piece.size();
  LS_CHECK(end <= slot_bytes_, "{} of {} bytes", end, slot_bytes_);
  pieces_[offset] = {piece.size(), crc};
  for (uint32_t k = 0; k < LS_PROOF_PLACES; ++k) {
    const uint64_t place = ls_proof_place(id_, k, slot_bytes_);
    const uint64_t from = std::max(place, offset), to = std::min(place + LS_PROOF_BYTES, end);
    if (from < to) std::ranges::copy(piece.subspan(from - offset, to - from), samples_[k].begin() + (from - place));
  }
}

uint32_t SlotSums::Crc() const {
  uint32_t crc = 0;
  uint64_t end = 0;
  for (const auto& [offset, piece] : pieces_) {
    crc = ls_crc32c_join(WithZeros(crc, offset - end), piece.crc, piece.bytes);
    end = offset + piece.bytes;
  }
  return WithZeros(crc, slot_bytes_ - end);
}

uint32_t SlotSums::Proof() const {
  std::array<const void*, LS_PROOF_PLACES> samples{};
  for (size_t k = 0; k < samples.size(); ++k) samples[k] = samples_[k].data();
  return ls_proof_of(id_, slot_bytes_, samples.data());
}

}  // namespace lockstep::checkpoint
