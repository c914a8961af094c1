#include "lockstep/checkpoint/slot_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "lockstep/client/client.h"

namespace lockstep::checkpoint {
namespace {

struct Cut {
  uint64_t offset = 0, bytes = 0;
};

// Pieces of all sizes and what lies between them, of a slot of random content with zeros there.
struct Slot {
  explicit Slot(uint32_t seed) : random(seed) {
    while (content.size() < 1 + seed % 5000) {
      const uint64_t gap = random() % 3 == 0 ? random() % 700 : 0, bytes = random() % 900;
      content.resize(content.size() + gap);
      cuts.push_back({content.size(), bytes});
      for (uint64_t i = 0; i < bytes; ++i) content.push_back(static_cast<std::byte>(random()));
    }
    content.resize(content.size() + random() % 70);
  }
  std::span<const std::byte> Piece(const Cut& cut) const { return std::span(content).subspan(cut.offset, cut.bytes); }

  std::mt19937 random;
  std::vector<std::byte> content;
  std::vector<Cut> cuts;
};

TEST(SlotSums, AreThoseOfTheSlotInMemoryInWhateverOrderItsPiecesCome) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Slot slot(seed * 17);
    std::ranges::shuffle(slot.cuts, slot.random);
    const Point point{EpochId(seed), StepId(seed % 7)};
    SlotSums sums(point, slot.content.size());
    for (const Cut& cut : slot.cuts) {
      const auto piece = slot.Piece(cut);
      sums.Add(cut.offset, piece, ls_crc32c(0, piece.data(), piece.size()));
    }
    ASSERT_EQ(sums.Crc(), ls_crc32c(0, slot.content.data(), slot.content.size())) << seed;
    ASSERT_EQ(sums.Proof(), ls_proof(point.epoch.value(), point.step.value(), slot.content.data(), slot.content.size()))
        << seed;
  }
}

TEST(SlotSums, OfNothingAndOfZerosAlone) {
  const std::vector<std::byte> zeros(1000);
  for (const uint64_t bytes : {0u, 1u, 64u, 1000u}) {
    const SlotSums sums({EpochId(3), StepId(4)}, bytes);
    EXPECT_EQ(sums.Crc(), ls_crc32c(0, zeros.data(), bytes));
    EXPECT_EQ(sums.Proof(), ls_proof(3, 4, zeros.data(), bytes));
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
