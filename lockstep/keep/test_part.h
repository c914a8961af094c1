// Test support: parts of checkpoints as nodes have them, with content by seed.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "lockstep/client/client.h"
#include "lockstep/keep/sender.h"

namespace lockstep::keep {

using Content = std::vector<std::byte>;

inline Content RandomBytes(size_t bytes, uint32_t seed) {
  Content content(bytes);
  std::mt19937 random(seed);
  for (std::byte& byte : content) byte = static_cast<std::byte>(random());
  return content;
}

// A slot: what lies before the tensors, of so many bytes, and the tensors.
inline Content SlotOf(uint64_t meta_bytes, uint32_t meta_seed, const Content& tensors) {
  Content slot = RandomBytes(meta_bytes, meta_seed);
  slot.resize(ls_align(meta_bytes));
  slot.insert(slot.end(), tensors.begin(), tensors.end());
  return slot;
}

// Not hashed yet: what a sender is offered.
inline OwnPart OfferOf(int node, const checkpoint::Point& point, std::vector<Content> slots, uint64_t meta_bytes) {
  const auto memory = std::make_shared<std::vector<Content>>(std::move(slots));  // shared with whoever reads it
  OwnPart part{{node, point, 4, {}, {}}, {}, memory};
  for (const Content& slot : *memory) {
    part.outline.slots.push_back({slot.size(), meta_bytes, ls_crc32c(0, slot.data(), slot.size())});
    part.contents.emplace_back(slot);
  }
  return part;
}

inline std::shared_ptr<const OwnPart> Hashed(OwnPart part) {
  HashChunks(part.outline, part.contents, [] { return true; });
  return std::make_shared<const OwnPart>(std::move(part));
}

}  // namespace lockstep::keep
