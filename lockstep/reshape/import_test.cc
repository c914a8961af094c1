#include "lockstep/reshape/import.h"

#include <gmock/gmock.h>

#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/reshape/gather.h"
#include "lockstep/reshape/open.h"
#include "lockstep/reshape/own.h"
#include "lockstep/reshape/test_files.h"

namespace lockstep::reshape {
namespace {

using namespace lockstep::reshape::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kNow[] = "2026-01-01T00:00:00Z";

std::vector<float> Read(checkpoint::MemoryDisk& disk, const Saved& saved, const SavedTensor& tensor, const Box& box) {
  std::vector<float> elements(Elements(box.sizes, 4).value());
  const absl::Status status = Gatherer(disk, saved).Read(tensor, box, std::as_writable_bytes(std::span(elements)));
  EXPECT_TRUE(status.ok()) << status;
  return elements;
}

// Of /dcp into /out; and what that is then.
absl::StatusOr<Saved> Imported(checkpoint::MemoryDisk& disk, const ImportOptions& options) {
  LS_ASSIGN_OR_RETURN(const Saved saved, OpenSaved(disk, "/dcp"));
  LS_ASSIGN_OR_RETURN(const Plan plan, MakePlan(saved, options));
  LS_ASSIGN_OR_RETURN(const checkpoint::Point point, Import(disk, saved, plan, options, "/out", kNow));
  LS_RETURN_IF_ERROR(checkpoint::Store(disk, "/out").Verify(point));
  return ReadOwn(disk, "/out/" + checkpoint::DirectoryName(point));
}
std::string ErrorOf(const ImportOptions& options) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  return Message(Imported(disk, options).status());
}

TEST(Import, EveryRankGetsEverythingWhole) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  const auto saved = Imported(disk, {.world_size = 3, .renames = {{"", "model."}}});
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->step, 9);
  EXPECT_EQ(saved->world_size, 3);
  ASSERT_EQ(saved->tensors.size(), 1U);
  const SavedTensor& weight = saved->tensors.front();
  EXPECT_EQ(weight.name, "model.weight");
  EXPECT_EQ(weight.shards.size(), 3U) << "copies";
  EXPECT_THAT(Read(disk, *saved, weight, WholeOf(weight.shape)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Import, SplitsByChunksAlongADimension) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  const auto saved = Imported(disk, {.world_size = 3, .shards = {{"w*", 0}}});
  ASSERT_TRUE(saved.ok()) << saved.status();
  const SavedTensor& weight = saved->tensors.front();
  ASSERT_EQ(weight.shards.size(), 3U);
  EXPECT_THAT(weight.shape, ElementsAre(4, 2));
  EXPECT_EQ(Named(weight.shards[0].box), "[0:2, 0:2]");
  EXPECT_EQ(Named(weight.shards[2].box), "[4:4, 0:2]");
  EXPECT_THAT(Read(disk, *saved, weight, {{1, 1}, {2, 1}}), ElementsAre(3, 5));
}

TEST(Import, AsSavedEachRankGetsItsOwn) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  const auto saved = Imported(disk, {.world_size = 2, .as_saved = true, .step = 41});
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->step, 41);
  const SavedTensor& weight = saved->tensors.front();
  EXPECT_EQ(Named(weight.shards[1].box), "[2:4, 0:2]");
  EXPECT_THAT(Read(disk, *saved, weight, weight.shards[1].box), ElementsAre(4, 5, 6, 7));
}

TEST(Import, IsTheNewestOfItsDirectory) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  ASSERT_TRUE(Imported(disk, {.world_size = 1}).ok());
  ASSERT_TRUE(Imported(disk, {.world_size = 1}).ok());
  const auto points = checkpoint::Store(disk, "/out").List().value();
  EXPECT_EQ(points.front(), (checkpoint::Point{EpochId(2), StepId(9)}));
  EXPECT_THAT(Message(MakePlan(OpenSaved(disk, "/out").value(), {.world_size = 1}).status()),
              HasSubstr("is Lockstep's own"));
}

TEST(Import, SaysWhatCantBe) {
  EXPECT_THAT(ErrorOf({.world_size = 3, .as_saved = true}), HasSubstr("it was saved by 2 ranks, --world is 3"));
  EXPECT_THAT(ErrorOf({.world_size = 2, .shards = {{"*", 2}}}),
              HasSubstr("weight has shape [4, 2], and no dimension 2"));
  EXPECT_THAT(ErrorOf({.world_size = 2, .shards = {{"nothing", 0}}}),
              HasSubstr("--shard nothing=0: no tensor has such"));
  EXPECT_THAT(ErrorOf({.world_size = 2, .renames = {{"nothing", "x"}}}),
              HasSubstr("--rename nothing=x: nothing's name"));
  EXPECT_THAT(ErrorOf({.world_size = 2, .renames = {{"weight", ""}}}), HasSubstr("--rename makes \"\" of weight"));
}

TEST(Import, DamageIsFoundAndNothingIsLeft) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  const auto saved = OpenSaved(disk, "/dcp").value();
  const uint64_t at = saved.tensors.front().shards[1].at;
  std::string content(disk.Size("/dcp/__1_0.distcp").value(), '\0');
  ASSERT_TRUE(disk.Read("/dcp/__1_0.distcp", 0, std::as_writable_bytes(std::span(content))).ok());
  content[at + 5] ^= 1;
  ASSERT_TRUE(disk.RemoveFile("/dcp/__1_0.distcp").ok());
  Put(disk, "/dcp/__1_0.distcp", content);
  EXPECT_THAT(Message(Imported(disk, {.world_size = 2}).status()), HasSubstr("/dcp/__1_0.distcp: the 16 bytes at"));
  EXPECT_THAT(disk.List("/out").value(), ElementsAre());
}

// Two tensors over one storage of six elements: strides (1, 3), and the last four in C order.
TEST(Gatherer, StridesAndPlacesInAStorageAreFollowed) {
  checkpoint::MemoryDisk disk;
  const std::string storage = Storage("FloatStorage", "0", 6);
  Put(disk, "/t.pt",
      Archive(
          Pickle(Dict({Text("a"), Tensor(storage, 0, {3, 2}, {1, 3}), Text("b"), Tensor(storage, 2, {2, 2}, {2, 1})})),
          {Storing<float>({0, 1, 2, 3, 4, 5})}));
  const Saved saved = OpenSaved(disk, "/t.pt").value();
  EXPECT_THAT(Read(disk, saved, saved.tensors[0], {{1, 0}, {2, 2}}), ElementsAre(1, 4, 2, 5));
  EXPECT_THAT(Read(disk, saved, saved.tensors[0], {{3, 0}, {0, 2}}), ElementsAre());
  EXPECT_THAT(Read(disk, saved, saved.tensors[1], {{0, 0}, {2, 2}}), ElementsAre(2, 3, 4, 5));
}

TEST(Gatherer, ReadsAStorageWithASumWholeOnceAndThenWhatIsWanted) {
  checkpoint::MemoryDisk disk;
  Put(disk, "/t.pt",
      Archive(Pickle(Dict({Text("a"), Tensor(Storage("FloatStorage", "0", 6), 0, {3, 2}, {2, 1})})),
              {Storing<float>({0, 1, 2, 3, 4, 5})}));
  const Saved saved = OpenSaved(disk, "/t.pt").value();
  ASSERT_TRUE(saved.tensors[0].shards[0].crc32);
  Gatherer gather(disk, saved);
  for (const auto& [row, read] : {std::pair(0, 24), {1, 32}, {2, 40}}) {
    std::array<float, 2> elements{};
    ASSERT_TRUE(gather
                    .Read(saved.tensors[0], {{static_cast<uint64_t>(row), 0}, {1, 2}},
                          std::as_writable_bytes(std::span(elements)))
                    .ok());
    EXPECT_THAT(elements, ElementsAre(2 * row, 2 * row + 1));
    EXPECT_EQ(gather.bytes_read(), static_cast<uint64_t>(read));
  }
}

}  // namespace
}  // namespace lockstep::reshape
