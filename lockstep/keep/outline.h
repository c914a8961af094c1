// A node's part of a checkpoint, described without its content: the slots of its ranks, cut into chunks that are known
// by their hashes. Chunks begin anew where the tensors begin, so equal tensors of two ranks make equal chunks though
// what lies before them differs in length. Two chunks are taken for equal when 128 bits of XXH3 and their lengths
// agree: no defence against an adversary, and a slot that was put together wrongly would still fail its CRC32C. Pure.
// Cost: one pass over the content, at the rate of memory.
//
//   Outline outline{node, point, world_size, headers, {}};
//   HashChunks(outline, contents, go_on);      // outline.chunks[i] is of PlacesOf(outline.slots)[i]
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/restore.h"

namespace lockstep::keep {

inline constexpr uint64_t kChunkBytes = 1 << 20;

struct Hash {
  uint64_t low = 0, high = 0;
  auto operator<=>(const Hash&) const = default;
};
Hash HashOf(std::span<const std::byte> chunk);

// As its header on the board says.
struct SlotHeader {
  uint64_t bytes = 0, meta_bytes = 0;
  uint32_t crc32c = 0, proof = 0;  // proof: of freshness (client/proof.h); 0: none is known
  bool operator==(const SlotHeader&) const = default;
};

// Where a chunk lies: in which slot (the index-th rank of the node), at which bytes of it.
struct Place {
  size_t slot = 0;
  uint64_t offset = 0, bytes = 0;
};

struct Outline {
  int node = 0;
  checkpoint::Point point;
  uint32_t world_size = 1;
  std::vector<SlotHeader> slots;
  std::vector<Hash> chunks;  // of all slots, one after the other
};

// The chunks of a slot, in order of their offsets; they cover its bytes. Those before the tensors are apart.
std::vector<Place> PlacesOf(const std::vector<SlotHeader>& slots);
uint64_t BytesOf(const Outline& outline);

// Fills in the chunks; `contents` are by slot, each as long as its header says. Once `go_on` says no, it is given up,
// and the outline is worth nothing.
void HashChunks(Outline& outline, std::span<const std::span<const std::byte>> contents, const checkpoint::GoOn& go_on);

// The hash of the tensors of each slot, if all slots have the same: replicas of one state, whatever lies before the
// tensors. Two outlines with the same one are replicas of each other.
std::optional<Hash> HashOfReplicas(const Outline& outline);

// What is wrong with an outline that came from outside: sizes that don't fit each other or any machine.
absl::Status Validate(const Outline& outline);

}  // namespace lockstep::keep

template <>
struct std::hash<lockstep::keep::Hash> {
  size_t operator()(const lockstep::keep::Hash& key) const { return key.low; }
};
