// Whatever is wrong with a file, verifying it says what loading it says.
#include "lockstep/checkpoint/rank_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/checkpoint/memory_disk.h"
#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::checkpoint {
namespace {

// A disk on which a bit of what is read is another one.
class BentDisk final : public MemoryDisk {
 public:
  absl::Status Read(const std::string& path, uint64_t offset, std::span<std::byte> data) override {
    LS_RETURN_IF_ERROR(MemoryDisk::Read(path, offset, data));
    largest = std::max(largest, data.size());
    if (path.ends_with(kBent) && bent >= offset && bent - offset < data.size())
      data[bent - offset] ^= std::byte(1U << bent % 8);
    return absl::OkStatus();
  }
  static constexpr char kBent[] = "/rank_00000.safetensors";
  uint64_t bent = UINT64_MAX;  // the byte, in that file
  size_t largest = 0;
};

// The first of one checkpoint, with its proof.
Part OnePart(const Point& point, const TestSlot& slot) {
  Part part{point, 0, {slot.image()}};
  part.slots[0].proof = ls_proof(point.epoch.value(), point.step.value(), slot.content.data(), slot.content.size());
  return part;
}

absl::Status LoadFirst(const Store& store, const Point& point) {
  LS_ASSIGN_OR_RETURN(const Manifest manifest, store.ReadManifest(point));
  std::vector<std::byte> slot;
  return store.Load(manifest, 0, 1, [&](size_t, const ManifestFile& file) -> absl::StatusOr<std::span<std::byte>> {
    slot.resize(file.slot_bytes);
    return slot;
  });
}

// Of every byte of a file, and of a manifest without a sum of its own.
TEST(RankFile, VerifySaysOfDamageWhatLoadSays) {
  const Point point{EpochId(1), StepId(1)};
  const TestSlot slot = MakeTestSlot(5);
  BentDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  Store store(disk, "/c");
  ASSERT_TRUE(Write(store, {OnePart(point, slot)}).ok());
  const std::string folder = "/c/" + DirectoryName(point);
  ASSERT_EQ(store.Verify(point), absl::OkStatus());
  ASSERT_EQ(LoadFirst(store, point), absl::OkStatus());
  const uint64_t bytes = disk.Size(folder + BentDisk::kBent).value();
  for (disk.bent = 0; disk.bent < bytes; ++disk.bent) {
    const absl::Status verified = store.Verify(point);
    ASSERT_EQ(verified, LoadFirst(store, point)) << disk.bent;
    ASSERT_TRUE(absl::IsDataLoss(verified)) << disk.bent << ": " << verified;
  }
  Json json = ToJson(store.ReadManifest(point).value());
  json.erase("crc32c");
  for (const char* field : {"bytes", "crc32c", "slot_bytes", "slot_meta_bytes", "slot_crc32c", "slot_proof"}) {
    Json other = json;
    other["files"][0][field] = json["files"][0][field].get<uint64_t>() ^ 1U;
    const std::string text = OneLine(other), path = folder + "/" + kManifestFile;
    ASSERT_TRUE(disk.RemoveFile(path).ok());
    ASSERT_TRUE(disk.Create(path).value()->Append(std::as_bytes(std::span(text))).ok());
    EXPECT_EQ(store.Verify(point), LoadFirst(store, point)) << field;
    EXPECT_TRUE(absl::IsDataLoss(store.Verify(point))) << field;
  }
}

// Tensors of several pieces; of no slot much is held.
TEST(RankFile, ALargeSlotIsVerifiedByPieces) {
  const Point point{EpochId(1), StepId(1)};
  const TestSlot slot = MakeSlotOf({MakeTensor("bytes", "U8", {2 * kPiece + 77}), MakeTensor("none", "F32", {0}),
                                    MakeTensor("words", "F32", {kPiece / 4 + 5}), MakeTensor("last", "I64", {0})},
                                   1);
  BentDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  Store store(disk, "/c");
  ASSERT_TRUE(Write(store, {OnePart(point, slot)}).ok());
  EXPECT_EQ(store.Verify(point), absl::OkStatus());
  EXPECT_EQ(LoadFirst(store, point), absl::OkStatus());
  EXPECT_EQ(disk.largest, kPiece);
  disk.bent = disk.Size("/c/" + DirectoryName(point) + BentDisk::kBent).value() - 1;
  EXPECT_EQ(store.Verify(point), LoadFirst(store, point));
  EXPECT_FALSE(store.Verify(point).ok());
}

}  // namespace
}  // namespace lockstep::checkpoint
