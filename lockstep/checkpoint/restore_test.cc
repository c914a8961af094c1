#include "lockstep/checkpoint/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lockstep/client/client.h"
#include "lockstep/client/commit.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kStride = 4096;

// Three ranks in plain memory.
class Restore : public testing::Test {
 protected:
  Restore() : words_(ls_board_bytes(3) / 8), memory_(3, std::vector<std::byte>(LS_SLOTS * kStride)) {
    board().ranks = board().world_size = 3;
    for (const std::vector<std::byte>& memory : memory_) {
      const std::span<const std::byte> both(memory);
      slots_.push_back({{both.first(kStride), both.last(kStride)}});
    }
  }
  ls_board& board() { return *reinterpret_cast<ls_board*>(words_.data()); }
  ls_slot& Slot(uint32_t rank, int index) { return board().rank[rank].slot[index]; }
  void Write(uint32_t rank, int index, uint64_t epoch, int64_t step, uint64_t bytes = 1000) {
    std::byte* base = memory_[rank].data() + static_cast<size_t>(index) * kStride;
    std::memset(base, static_cast<int>(step), bytes);
    ls_slot_open(&Slot(rank, index), epoch, step, 3);
    ls_slot_done(&Slot(rank, index), bytes, 10, ls_crc32c(0, base, bytes), ls_proof(epoch, step, base, bytes));
  }
  void WriteAll(int index, uint64_t epoch, int64_t step) {
    for (uint32_t rank = 0; rank < 3; ++rank) Write(rank, index, epoch, step);
  }
  void Flip(uint32_t rank, int index) { memory_[rank][static_cast<size_t>(index) * kStride + 500] ^= std::byte{4}; }
  struct Choice {
    std::optional<Point> point;
    std::vector<std::string> rejected;
  };
  Choice Choose() {
    RestoreChoices found = FindRestores(board(), slots_, 1);
    if (found.points.empty()) return {std::nullopt, found.rejected};
    return {found.points.front(), found.rejected};
  }

  std::vector<uint64_t> words_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<RankSlots> slots_;
};

TEST_F(Restore, BeginsAfreshWithoutACommit) {
  EXPECT_FALSE(Choose().point);
  Write(0, 0, 1, 5);
  Write(1, 0, 1, 5);
  EXPECT_FALSE(Choose().point) << "rank 2 lacks it";
  Write(2, 0, 2, 5);
  EXPECT_FALSE(Choose().point) << "the same step of another epoch is another checkpoint";
}

TEST_F(Restore, TakesTheNewestByEpochThenStep) {
  WriteAll(0, 1, 9);
  WriteAll(1, 2, 3);
  const Choice choice = Choose();
  EXPECT_EQ(choice.point, (Point{EpochId(2), StepId(3)}));
  EXPECT_THAT(choice.rejected, testing::IsEmpty());
}

TEST_F(Restore, FallsBackFromAFlippedBitAndSaysWhere) {
  WriteAll(0, 1, 116);
  WriteAll(1, 1, 117);
  Flip(2, 1);
  const Choice choice = Choose();
  EXPECT_EQ(choice.point, (Point{EpochId(1), StepId(116)}));
  EXPECT_THAT(choice.rejected, testing::ElementsAre(testing::MatchesRegex(
                                   "rank 2: checkpoint of step 117: CRC 0x.*, expected 0x.*, over 1000 bytes")));
  EXPECT_EQ(Slot(2, 1).state, static_cast<uint64_t>(LS_SLOT_BAD));
  EXPECT_EQ(Slot(0, 1).state, static_cast<uint64_t>(LS_SLOT_DONE)) << "a good slot stays as it is";
}

TEST_F(Restore, AStateOfAnotherStepIsNotFresh) {
  WriteAll(0, 1, 116);
  WriteAll(1, 1, 117);
  std::memcpy(memory_[1].data() + kStride, memory_[1].data(), 1000);  // of step 116, and with a CRC that is right
  Slot(1, 1).crc32c = Slot(1, 0).crc32c;
  const Choice choice = Choose();
  EXPECT_EQ(choice.point, (Point{EpochId(1), StepId(116)}));
  EXPECT_THAT(
      choice.rejected,
      testing::ElementsAre("rank 1: checkpoint of step 117: it is another state: the proof of freshness differs"));
}

TEST_F(Restore, NamesEveryBadRankInOrderAndBeginsAfreshIfNothingIsLeft) {
  WriteAll(0, 1, 116);
  Flip(1, 0);
  Flip(0, 0);
  const Choice choice = Choose();
  EXPECT_FALSE(choice.point);
  EXPECT_THAT(choice.rejected, testing::ElementsAre(testing::StartsWith("rank 0:"), testing::StartsWith("rank 1:")));
}

TEST_F(Restore, DistrustsHeaders) {
  WriteAll(0, 1, 1);
  Slot(0, 0).bytes = kStride + 1;
  Slot(1, 0).meta_bytes = 1001;
  Slot(2, 0).world_size = 8;
  EXPECT_THAT(Choose().rejected,
              testing::ElementsAre("rank 0: checkpoint of step 1: its header claims 4097 bytes, the buffer holds 4096",
                                   "rank 1: checkpoint of step 1: its header claims 1000 bytes, the buffer holds 4096",
                                   "rank 2: checkpoint of step 1: written by 8 ranks, this job has 3"));
}

TEST_F(Restore, ARankWithoutBuffersHoldsNothing) {
  WriteAll(0, 1, 1);
  slots_[1] = RankSlots{};
  EXPECT_FALSE(Choose().point);
}

// It could not be mapped, for want of address space or of descriptors: nothing is wrong with it.
TEST_F(Restore, MemoryThatCannotBeReadNowIsNotBad) {
  WriteAll(0, 1, 1);
  WriteAll(1, 1, 2);
  const std::span<const std::byte> newer = std::exchange(slots_[1].slot[1], {});
  const Choice choice = Choose();
  EXPECT_EQ(choice.point, (Point{EpochId(1), StepId(1)}));
  EXPECT_THAT(choice.rejected, testing::ElementsAre("rank 1: checkpoint of step 2: its memory can't be read here"));
  EXPECT_EQ(Slot(1, 1).state, uint64_t{LS_SLOT_DONE});
  slots_[1].slot[1] = newer;
  EXPECT_EQ(Choose().point, (Point{EpochId(1), StepId(2)}));
}

}  // namespace
}  // namespace lockstep::checkpoint
