#include "lockstep/keep/outline.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <numeric>

#include "lockstep/client/client.h"

namespace lockstep::keep {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 44;  // of a slot; beyond any machine

void CutInto(std::vector<Place>& places, size_t slot, uint64_t begin, uint64_t end) {
  for (uint64_t offset = begin; offset < end; offset += kChunkBytes)
    places.push_back({slot, offset, std::min(kChunkBytes, end - offset)});
}

uint64_t TensorsBegin(const SlotHeader& header) { return std::min(header.bytes, ls_align(header.meta_bytes)); }

uint64_t CountOf(uint64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

}  // namespace

Hash HashOf(std::span<const std::byte> chunk) {
  const XXH128_hash_t hash = XXH3_128bits(chunk.data(), chunk.size());
  return {hash.low64, hash.high64};
}

std::vector<Place> PlacesOf(const std::vector<SlotHeader>& slots) {
  std::vector<Place> places;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const uint64_t tensors = TensorsBegin(slots[slot]);
    CutInto(places, slot, 0, tensors);
    CutInto(places, slot, tensors, slots[slot].bytes);
  }
  return places;
}

uint64_t BytesOf(const Outline& outline) {
  return std::accumulate(outline.slots.begin(), outline.slots.end(), uint64_t{0},
                         [](uint64_t sum, const SlotHeader& slot) { return sum + slot.bytes; });
}

void HashChunks(Outline& outline, std::span<const std::span<const std::byte>> contents, const checkpoint::GoOn& go_on) {
  outline.chunks.clear();
  for (const Place& place : PlacesOf(outline.slots)) {
    if (!go_on()) return;
    outline.chunks.push_back(HashOf(contents[place.slot].subspan(place.offset, place.bytes)));
  }
}

std::optional<Hash> HashOfReplicas(const Outline& outline) {
  std::vector<std::vector<Hash>> tensors(outline.slots.size());
  const std::vector<Place> places = PlacesOf(outline.slots);
  for (size_t i = 0; i < places.size() && i < outline.chunks.size(); ++i)
    if (places[i].offset >= TensorsBegin(outline.slots[places[i].slot]))
      tensors[places[i].slot].push_back(outline.chunks[i]);
  const auto bytes = [&](size_t slot) { return outline.slots[slot].bytes - TensorsBegin(outline.slots[slot]); };
  for (size_t slot = 1; slot < tensors.size(); ++slot)
    if (tensors[slot] != tensors[0] || bytes(slot) != bytes(0)) return std::nullopt;
  if (tensors.empty()) return std::nullopt;
  tensors[0].push_back({bytes(0), 0});
  return HashOf(std::as_bytes(std::span(tensors[0])));
}

absl::Status Validate(const Outline& outline) {
  uint64_t chunks = 0;
  for (const SlotHeader& slot : outline.slots) {
    if (slot.bytes > kMostBytes || slot.meta_bytes > slot.bytes)
      return InvalidArgument("a slot of {} bytes, {} of them before the tensors", slot.bytes, slot.meta_bytes);
    const uint64_t tensors = TensorsBegin(slot);
    chunks += CountOf(tensors) + CountOf(slot.bytes - tensors);
  }
  if (chunks != outline.chunks.size())
    return InvalidArgument("{} hashes for slots of {} chunks", outline.chunks.size(), chunks);
  return absl::OkStatus();
}

}  // namespace lockstep::keep
