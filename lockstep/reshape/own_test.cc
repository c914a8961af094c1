#include "lockstep/reshape/own.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/memory_disk.h"
#include "lockstep/checkpoint/test_slot.h"
#include "lockstep/reshape/gather.h"

namespace lockstep::reshape {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const SavedTensor& Find(const Saved& saved, const std::string& name) {
  for (const SavedTensor& tensor : saved.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no " << name;
  return saved.tensors.front();
}

// The slots of two ranks, whose weights have different shapes, and whose layouts nobody can read.
TEST(Own, SaysWhichRankHasWhat) {
  checkpoint::MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  checkpoint::Store store(disk, "/c");
  const checkpoint::TestCheckpoint checkpoint(1, 5);
  ASSERT_TRUE(checkpoint::Write(store, checkpoint).ok());
  const absl::StatusOr<Saved> saved = ReadOwn(disk, "/c", checkpoint.point);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->world_size, 2);
  EXPECT_EQ(saved->step, 5);
  EXPECT_THAT(saved->passed_over, ElementsAre(HasSubstr("rank 0: the places of its shards"), HasSubstr("rank 1")));
  EXPECT_EQ(Find(*saved, "flag").shards.size(), 2U) << "copies, for all that is known";
  EXPECT_EQ(Find(*saved, "odd").dtype, "complex128");
  const SavedTensor &first = Find(*saved, "weight"), &second = Find(*saved, "weight@1");
  EXPECT_EQ(first.shards.size(), 1U);
  EXPECT_NE(first.shape, second.shape);
  EXPECT_EQ(second.shards.front().rank, 1);
  const std::vector<std::byte>& slot = checkpoint.slots[1].content;
  const auto table = checkpoint::ReadTable(std::span(slot).first(checkpoint.slots[1].meta_bytes), slot.size()).value();
  std::vector<std::byte> bytes(BytesOf(second));
  ASSERT_TRUE(Gatherer(disk, *saved).Read(second, WholeOf(second.shape), bytes).ok());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), slot.begin() + static_cast<std::ptrdiff_t>(table[1].slot_offset)));
}

}  // namespace
}  // namespace lockstep::reshape
