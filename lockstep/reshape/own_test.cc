#include "lockstep/reshape/own.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "lockstep/checkpoint/memory_disk.h"
#include "lockstep/checkpoint/test_slot.h"
#include "lockstep/reshape/gather.h"
#include "lockstep/reshape/open.h"

namespace lockstep::reshape {
namespace {

using testing::Contains;
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
  const absl::StatusOr<Saved> saved = ReadOwn(disk, "/c/" + checkpoint::DirectoryName(checkpoint.point));
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

TEST(Own, IsReadUnderAnyNameAndADamagedNewestOneIsTold) {
  checkpoint::MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  checkpoint::Store store(disk, "/c");
  const checkpoint::TestCheckpoint old(1, 5), next(1, 7);
  for (const auto* one : {&old, &next}) ASSERT_TRUE(checkpoint::Write(store, *one).ok());
  const std::string newest = "/c/" + checkpoint::DirectoryName(next.point);
  EXPECT_EQ(OpenSaved(disk, "/c")->step, 7);
  disk.read_error = EACCES;
  EXPECT_THAT(Message(OpenSaved(disk, "/c").status()), HasSubstr("Permission denied")) << "it may be whole";
  disk.read_error = 0;
  ASSERT_TRUE(disk.RemoveFile(newest + "/rank_00001.safetensors").ok());
  const absl::StatusOr<Saved> saved = OpenSaved(disk, "/c");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->step, 5);
  EXPECT_THAT(saved->passed_over, Contains(HasSubstr(newest + "/rank_00001.safetensors")));
  ASSERT_TRUE(disk.Rename("/c/" + checkpoint::DirectoryName(old.point), "/c/best").ok());
  EXPECT_EQ(OpenSaved(disk, "/c/best")->step, 5);
  EXPECT_THAT(Message(OpenSaved(disk, "/c").status()), HasSubstr("rank_00001.safetensors"));
}

}  // namespace
}  // namespace lockstep::reshape
