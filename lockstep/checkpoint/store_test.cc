// Crashes and failures at every operation of a flush, on a disk that loses what was not synced.
#include "lockstep/checkpoint/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/memory_disk.h"
#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kFolder[] = "/c";
constexpr uint64_t kMaxLoose = 12;  // of entry changes at once: all their subsets are tried

// A disk with /c, durable, and the given checkpoints in it.
std::unique_ptr<MemoryDisk> DiskWith(const std::vector<const TestCheckpoint*>& checkpoints) {
  auto disk = std::make_unique<MemoryDisk>();
  EXPECT_TRUE(disk->MakeDirectory(kFolder).ok());
  Store store(*disk, kFolder);
  for (const TestCheckpoint* checkpoint : checkpoints) EXPECT_EQ(Write(store, *checkpoint), absl::OkStatus());
  disk->log.clear();
  disk->operations = 0;
  return disk;
}

absl::Status Flush(Disk& disk, const TestCheckpoint& checkpoint, int keep) {
  Store store(disk, kFolder);
  LS_RETURN_IF_ERROR(Write(store, checkpoint));
  return store.Prune(keep);
}

TEST(Store, WhatIsWrittenComesBackByteForByte) {
  const TestCheckpoint checkpoint(3, 41, 4);
  const auto disk = DiskWith({&checkpoint});
  const Store store(*disk, kFolder);
  EXPECT_THAT(store.List().value(), ElementsAre(checkpoint.point));
  EXPECT_EQ(store.Verify(checkpoint.point), absl::OkStatus());
  EXPECT_TRUE(Holds(store, checkpoint));
  EXPECT_EQ(store.ReadManifest(checkpoint.point)->job, "test");
}

TEST(Store, ListsByEpochThenStepAndLeavesOtherNamesAlone) {
  const TestCheckpoint a(1, 9), b(2, 3), c(2, 4);
  const auto disk = DiskWith({&a, &b, &c});
  for (const char* name : {"/c/step_7_epoch_1", "/c/step_000000000007_epoch_1x", "/c/notes", "/c/step_000000000007"})
    ASSERT_TRUE(disk->MakeDirectory(name).ok());
  EXPECT_THAT(Store(*disk, kFolder).List().value(), ElementsAre(c.point, b.point, a.point));
}

TEST(Store, KeepsTheNewestWholeOnesAndWhatIsDamaged) {
  const TestCheckpoint a(1, 1), b(1, 2), c(1, 3), d(1, 4);
  const auto disk = DiskWith({&a, &b, &c, &d});
  ASSERT_TRUE(disk->RemoveFile("/c/" + DirectoryName(c.point) + "/rank_00001.safetensors").ok());
  Store store(*disk, kFolder);
  EXPECT_EQ(store.Prune(2), absl::OkStatus());
  EXPECT_THAT(store.List().value(), ElementsAre(d.point, c.point, b.point));
  EXPECT_THAT(Message(store.Verify(c.point)), HasSubstr("rank_00001.safetensors"));
}

TEST(Store, RefusesAStaleWriter) {
  const TestCheckpoint newer(2, 5), stale(1, 900), older(2, 4);
  const auto disk = DiskWith({&newer});
  Store store(*disk, kFolder);
  EXPECT_THAT(Message(Write(store, stale)), HasSubstr("a stale run writes nothing"));
  EXPECT_FALSE(Write(store, older).ok());
  EXPECT_FALSE(store.Seal({older.point, "", "", "", {}}, Always).ok());
  EXPECT_THAT(store.List().value(), ElementsAre(newer.point));
  EXPECT_TRUE(disk->log.empty());
}

TEST(Store, WritesNothingTwiceAndReplacesADamagedOne) {
  const TestCheckpoint one(1, 1);
  const auto disk = DiskWith({&one});
  Store store(*disk, kFolder);
  EXPECT_EQ(Write(store, one), absl::OkStatus());
  EXPECT_EQ(disk->log.size(), 1u) << "it is synced, for the sync may have been what failed";
  ASSERT_TRUE(disk->RemoveFile("/c/" + DirectoryName(one.point) + "/manifest.json").ok());
  EXPECT_EQ(Write(store, one), absl::OkStatus());
  EXPECT_TRUE(Holds(store, one));
}

TEST(Store, ACorruptOrOverwrittenSlotIsNeverKept) {
  const TestCheckpoint old(1, 1), good(1, 2);
  TestCheckpoint bad(1, 2);
  Part part = bad.whole();
  bad.slots[1].content.back() ^= std::byte{1};
  const auto disk = DiskWith({&old});
  Store store(*disk, kFolder);
  EXPECT_THAT(Message(Write(store, {part})), testing::MatchesRegex("rank 1: its memory has CRC 0x.*, expected 0x.*"));
  EXPECT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(old.point)));
  // Overwritten after the first rank's file was written, while the second is.
  int asked = 0;
  part = good.whole();
  auto content = good.slots[1].content;
  part.slots[1].content = content;
  EXPECT_FALSE(Write(store, {part}, [&] { return content.back() = std::byte(++asked), true; }).ok());
  EXPECT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(old.point)));
}

TEST(Store, AFlushThatIsGivenUpLeavesNothingWhereverItStands) {
  const TestCheckpoint old(1, 1), next(1, 2);
  for (int pieces = 0;; ++pieces) {
    const auto disk = DiskWith({&old});
    int left = pieces;
    Store store(*disk, kFolder);
    const absl::Status status = Write(store, {next.whole()}, [&] { return --left >= 0; });
    if (status.ok()) {
      EXPECT_GT(pieces, 5);
      break;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(old.point)));
  }
}

// The newest checkpoint that can be loaded is one of the two and holds its own bytes.
std::optional<Point> OneOf(const Store& store, const TestCheckpoint& old, const TestCheckpoint& next) {
  const std::optional<Point> newest = NewestWhole(store);
  if (newest == old.point && Holds(store, old)) return newest;
  if (newest == next.point && Holds(store, next)) return newest;
  return std::nullopt;
}

struct Flushing {
  int keep;
  std::vector<size_t> parts;  // ranks of each node
};
class Crashes : public testing::TestWithParam<Flushing> {};

std::vector<Part> PartsOf(const TestCheckpoint& checkpoint, const std::vector<size_t>& counts) {
  std::vector<Part> parts;
  size_t first = 0;
  for (const size_t count : counts) {
    parts.push_back(checkpoint.part(first, count));
    first += count;
  }
  return parts;
}

// A crash after each operation, whatever is lost of what was not synced: the old one or the new one, and once the flush
// has answered, the new one. The next run clears up, and its flush succeeds.
TEST_P(Crashes, LeaveTheOldOrTheNewOneWhole) {
  const TestCheckpoint older(1, 3), old(1, 7), next(2, 4), after(3, 8);
  const auto before = DiskWith({&older, &old});
  const auto disk = DiskWith({&older, &old});
  Store writer(*disk, kFolder);
  ASSERT_EQ(Write(writer, PartsOf(next, GetParam().parts)), absl::OkStatus());
  const size_t durable_from = disk->log.size();
  ASSERT_EQ(writer.Prune(GetParam().keep), absl::OkStatus());
  int worlds = 0;
  for (size_t count = 0; count <= disk->log.size(); ++count) {
    ASSERT_LE(disk->Loose(count), kMaxLoose);
    for (uint64_t stays = 0; stays < uint64_t{1} << disk->Loose(count); ++stays) {
      for (const Unsynced data : {Unsynced::kKept, Unsynced::kDropped, Unsynced::kTorn, Unsynced::kZeros}) {
        const auto left = disk->Crash(*before, count, stays, data);
        Store store(*left, kFolder);
        const std::optional<Point> newest = OneOf(store, old, next);
        ASSERT_TRUE(newest) << "after " << count << " operations, changes " << stays;
        ASSERT_TRUE(count < durable_from || newest == next.point) << count << " operations, changes " << stays;
        ASSERT_EQ(store.ClearLeftovers(), absl::OkStatus());
        ASSERT_EQ(OneOf(store, old, next), newest);
        ASSERT_EQ(Flush(*left, after, 2), absl::OkStatus());
        ASSERT_TRUE(Holds(store, after));
        ++worlds;
      }
    }
  }
  EXPECT_GT(worlds, 400) << "the search must not have become empty";
}
INSTANTIATE_TEST_SUITE_P(Keep, Crashes,
                         testing::Values(Flushing{1, {2}}, Flushing{2, {2}}, Flushing{3, {2}}, Flushing{1, {1, 1}}));

// The same for a copy of a checkpoint of another store.
TEST(Store, ACopyThatCrashesLeavesTheOldOrTheNewOneWhole) {
  const TestCheckpoint old(1, 7), next(2, 4), after(3, 8);
  const auto source = DiskWith({&next});
  const auto before = DiskWith({&old}), disk = DiskWith({&old});
  ASSERT_EQ(Store(*disk, kFolder).CopyFrom(Store(*source, kFolder), next.point, Always), absl::OkStatus());
  ASSERT_TRUE(Holds(Store(*disk, kFolder), next));
  for (size_t count = 0; count <= disk->log.size(); ++count) {
    ASSERT_LE(disk->Loose(count), kMaxLoose);
    for (uint64_t stays = 0; stays < uint64_t{1} << disk->Loose(count); ++stays) {
      const auto left = disk->Crash(*before, count, stays, Unsynced::kTorn);
      Store store(*left, kFolder);
      const std::optional<Point> newest = OneOf(store, old, next);
      ASSERT_TRUE(newest) << "after " << count << " operations, changes " << stays;
      ASSERT_TRUE(count < disk->log.size() || newest == next.point);
      ASSERT_EQ(store.ClearLeftovers(), absl::OkStatus());
      ASSERT_EQ(Flush(*left, after, 2), absl::OkStatus());
    }
  }
}

TEST(Store, ADamagedSourceIsNotCopiedAndADamagedCopyIsReplaced) {
  const TestCheckpoint old(1, 7), next(2, 4);
  const auto source = DiskWith({&next}), damaged = DiskWith({&next}), disk = DiskWith({&old});
  const std::string file = "/c/" + DirectoryName(next.point) + "/rank_00001.safetensors";
  const uint64_t bytes = damaged->Size(file).value();
  ASSERT_TRUE(damaged->RemoveFile(file).ok());
  ASSERT_TRUE(damaged->Create(file).value()->Append(std::vector<std::byte>(bytes)).ok());
  Store store(*disk, kFolder);
  EXPECT_THAT(Message(store.CopyFrom(Store(*damaged, kFolder), next.point, Always)), HasSubstr("has CRC"));
  EXPECT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(old.point)));
  ASSERT_TRUE(store.CopyFrom(Store(*source, kFolder), next.point, Always).ok());
  ASSERT_TRUE(disk->RemoveFile(file).ok());
  ASSERT_TRUE(store.CopyFrom(Store(*source, kFolder), next.point, Always).ok());
  EXPECT_TRUE(Holds(store, next));
  const TestCheckpoint stale(1, 900);
  const auto other = DiskWith({&stale});
  EXPECT_THAT(Message(store.CopyFrom(Store(*other, kFolder), stale.point, Always)), HasSubstr("stale"));
}

// EMFILE, a timeout of the network: what can't be read now is not damaged, and stays.
TEST(Store, WhatCannotBeReadIsNotTakenForDamaged) {
  const TestCheckpoint one(1, 1);
  const auto source = DiskWith({&one}), disk = DiskWith({&one});
  Store store(*disk, kFolder);
  const Manifest manifest = store.ReadManifest(one.point).value();
  for (const int error : {EIO, EMFILE, EACCES, ETIMEDOUT}) {
    disk->read_error = error;
    EXPECT_FALSE(store.CopyFrom(Store(*source, kFolder), one.point, Always).ok());
    EXPECT_FALSE(store.Seal(manifest, Always).ok());
    disk->read_error = 0;
    EXPECT_TRUE(Holds(store, one));
  }
}

TEST(Store, ACopyIsReadBeforeItCountsWhereThatIsWanted) {
  const TestCheckpoint one(1, 1);
  const auto source = DiskWith({&one}), disk = DiskWith({&one});
  const std::string file = "/c/" + DirectoryName(one.point) + "/rank_00001.safetensors";
  const uint64_t bytes = disk->Size(file).value();
  ASSERT_TRUE(disk->RemoveFile(file).ok());
  ASSERT_TRUE(disk->Create(file).value()->Append(std::vector<std::byte>(bytes)).ok());
  Store store(*disk, kFolder);
  ASSERT_TRUE(store.CopyFrom(Store(*source, kFolder), one.point, Always).ok());
  EXPECT_FALSE(store.Verify(one.point).ok()) << "its sizes are right";
  ASSERT_TRUE(store.CopyFrom(Store(*source, kFolder), one.point, Always, Store::Here::kBySums).ok());
  EXPECT_TRUE(Holds(store, one));
}

// Another writer of the same store: its own tidying up leaves what is newer alone; and where it takes a file away
// nevertheless, no checkpoint without it is made.
TEST(Store, ACopyUnderWayIsSparedAndNotSealedWithoutItsFiles) {
  const TestCheckpoint old(1, 1), next(1, 2);
  const auto source = DiskWith({&next}), disk = DiskWith({&old});
  Store store(*disk, kFolder), other(*disk, kFolder);
  ASSERT_TRUE(store.WritePart(next.whole(), Always).ok());
  EXPECT_EQ(other.Tidy(2), absl::OkStatus());
  const std::string folder = "/c/.incoming_" + DirectoryName(next.point);
  EXPECT_THAT(disk->List(folder).value(), ElementsAre(RankFileName(0), RankFileName(1)));
  EXPECT_EQ(other.ClearLeftovers(), absl::OkStatus());
  const auto taken = [&] { return (void)disk->RemoveFile(folder + "/" + RankFileName(0)), true; };
  const absl::Status status = store.CopyFrom(Store(*source, kFolder), next.point, taken);
  EXPECT_THAT(Message(status), HasSubstr("rank_00000.safetensors was written and is not here"));
  EXPECT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(old.point)));
}

// A person may put anything into a checkpoint, and move one to another disk.
TEST(Store, AnOldOneGoesWithAllThatLiesInItButNotWithWhatLinksPointTo) {
  namespace fs = std::filesystem;
  const TestCheckpoint a(1, 1), b(1, 2), c(1, 3);
  const TestFolder scratch;
  const fs::path folder = scratch.path(), here = folder / "here", elsewhere = folder / "elsewhere";
  fs::create_directory(here);
  const auto disk = PosixDisk();
  Store store(*disk, here);
  for (const TestCheckpoint* one : {&a, &b, &c}) ASSERT_TRUE(Write(store, *one).ok());
  fs::create_directories(here / DirectoryName(a.point) / "notes" / "deep");
  fs::rename(here / DirectoryName(b.point), elsewhere);
  fs::create_directory_symlink(elsewhere, here / DirectoryName(b.point));
  EXPECT_EQ(store.Tidy(1), absl::OkStatus());
  EXPECT_THAT(disk->List(here).value(), ElementsAre(DirectoryName(c.point)));
  EXPECT_TRUE(fs::exists(elsewhere / kManifestFile));
}

TEST(Store, AFileOfTheNameOfACheckpointIsADamagedOne) {
  const TestCheckpoint old(1, 1), stray(1, 2);
  const TestFolder scratch;
  const auto disk = PosixDisk();
  Store store(*disk, scratch.path());
  ASSERT_TRUE(Write(store, old).ok());
  std::ofstream(scratch.path() + "/" + DirectoryName(stray.point)) << "x";
  const absl::Status status = store.ReadManifest(stray.point).status();
  EXPECT_TRUE(MeansDamage(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("manifest.json: Not a directory"));
  EXPECT_TRUE(Write(store, stray).ok()) << "it makes room";
  EXPECT_EQ(store.Verify(stray.point), absl::OkStatus());
}

TEST(Store, ALeftoverThatStaysKeepsNoOtherOneAndOtherNamesAreLeftAlone) {
  const auto disk = DiskWith({});
  for (const char* name : {"/c/.incoming_mine", "/c/.incoming_step_000000000001_epoch_1",
                           "/c/.outgoing_step_000000000002_epoch_1", "/c/.outgoing_x"})
    ASSERT_TRUE(disk->MakeDirectory(name).ok());
  disk->fail_at = disk->operations;
  disk->error = EBUSY;
  Store store(*disk, kFolder);
  EXPECT_FALSE(store.ClearLeftovers().ok());
  EXPECT_THAT(disk->List(kFolder).value(),
              ElementsAre(".incoming_mine", ".incoming_step_000000000001_epoch_1", ".outgoing_x"));
}

TEST(Store, TheStateOfAnotherStepIsNotLoaded) {
  for (const int64_t step : {1, 2}) {
    const TestCheckpoint one(1, 1);
    const auto disk = DiskWith({});
    Store store(*disk, kFolder);
    Part part = one.whole();
    for (SlotImage& slot : part.slots) slot.proof = ls_proof(1, step, slot.content.data(), slot.content.size());
    ASSERT_TRUE(Write(store, {part}).ok());
    EXPECT_EQ(Holds(store, one), step == 1);
    EXPECT_EQ(store.Verify(one.point).ok(), step == 1);
  }
}

// A manifest of before manifests had a sum of their own: what it says of the slot may be what is damaged.
TEST(Store, WhatCouldNotBeLoadedIsNotVerified) {
  const TestCheckpoint one(1, 1);
  const auto disk = DiskWith({&one});
  Store store(*disk, kFolder);
  Json json = ToJson(store.ReadManifest(one.point).value());
  json.erase("crc32c");
  const std::string path = "/c/" + DirectoryName(one.point) + "/" + kManifestFile;
  const auto put = [&] {
    const std::string text = OneLine(json);
    ASSERT_TRUE(disk->RemoveFile(path).ok());
    ASSERT_TRUE(disk->Create(path).value()->Append(std::as_bytes(std::span(text))).ok());
  };
  put();
  EXPECT_EQ(store.Verify(one.point), absl::OkStatus());
  json["files"][1]["slot_crc32c"] = json["files"][1]["slot_crc32c"].get<uint32_t>() ^ 1U;
  put();
  const absl::Status status = store.Verify(one.point);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(Message(status), HasSubstr("rank_00001.safetensors, as a slot, has CRC"));
}

// More bytes than any memory: it is the table that does not fit, and what doesn't is damaged.
TEST(Store, ASlotThatCanNotBeSoLargeIsDamaged) {
  const TestCheckpoint one(1, 1);
  const auto disk = DiskWith({&one});
  const Store store(*disk, kFolder);
  Manifest manifest = store.ReadManifest(one.point).value();
  manifest.files[0].slot_bytes = uint64_t{1} << 60U;
  const auto make = [](size_t, const ManifestFile&) -> absl::StatusOr<std::span<std::byte>> {
    return MakeError(absl::StatusCode::kResourceExhausted, "asked for");
  };
  EXPECT_TRUE(absl::IsDataLoss(store.Load(manifest, 0, 1, make)));
}

TEST(Store, WhatCanNotBeRemovedKeepsNothingElseOfACheckpoint) {
  const TestCheckpoint a(1, 1);
  const auto disk = DiskWith({&a});
  const std::string leftover = "/c/.outgoing_" + DirectoryName(a.point);
  ASSERT_TRUE(disk->Rename("/c/" + DirectoryName(a.point), leftover).ok());
  disk->fail_at = disk->operations;
  disk->error = EPERM;
  EXPECT_FALSE(Store(*disk, kFolder).ClearLeftovers().ok());
  EXPECT_THAT(disk->List(leftover).value(), ElementsAre(kManifestFile)) << "which came first";
}

TEST(Store, AnOldOneThatStaysKeepsNoOtherOneAndNoLeftover) {
  const TestCheckpoint a(1, 1), b(1, 2), c(1, 3);
  const auto disk = DiskWith({&a, &b, &c});
  ASSERT_TRUE(disk->MakeDirectory("/c/.outgoing_step_000000000009_epoch_1").ok());
  disk->fail_at = disk->operations;
  disk->error = EACCES;
  EXPECT_FALSE(Store(*disk, kFolder).Tidy(1).ok());
  EXPECT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(b.point), DirectoryName(c.point)));
}

TEST(Store, WhatIsBeingReadIsSpared) {
  const TestCheckpoint a(1, 1), b(1, 2), c(1, 3);
  const auto disk = DiskWith({&a, &b, &c});
  Store store(*disk, kFolder);
  EXPECT_EQ(store.Prune(1, a.point), absl::OkStatus());
  EXPECT_THAT(store.List().value(), ElementsAre(c.point, a.point));
}

TEST(Store, WhatIsDamagedDoesNotCount) {
  const TestCheckpoint a(1, 1), b(1, 2), c(1, 3), d(2, 4);
  const auto disk = DiskWith({&a, &b, &c, &d});
  Store store(*disk, kFolder);
  EXPECT_EQ(store.Prune(2, std::nullopt, [&](const Point& point) { return point == c.point; }), absl::OkStatus());
  EXPECT_THAT(store.List().value(), ElementsAre(d.point, c.point, b.point));
}

TEST(Store, PartsOfSeveralNodesAreOneCheckpoint) {
  const TestCheckpoint old(1, 1), next(1, 2, 4);
  const auto disk = DiskWith({&old});
  Store store(*disk, kFolder);
  Manifest manifest{next.point, "test", "", "", {}};
  const auto last = store.WritePart(next.part(2, 2), Always);  // in any order
  const auto first = store.WritePart(next.part(0, 2), Always);
  ASSERT_TRUE(first.ok() && last.ok());
  EXPECT_THAT(store.List().value(), ElementsAre(old.point)) << "before it is sealed";
  manifest.files = *first;
  manifest.files.insert(manifest.files.end(), last->begin(), last->end());
  EXPECT_EQ(store.Seal(manifest, Always), absl::OkStatus());
  EXPECT_TRUE(Holds(store, next));
  EXPECT_EQ(store.WritePart(next.part(2, 2), Always)->front().crc32c, last->front().crc32c) << "asked again";
}

TEST(Store, OneNodesFailureLeavesTheOthersPartsUntilTheyAreDiscarded) {
  const TestCheckpoint old(1, 1), next(1, 2, 3);
  const auto disk = DiskWith({&old});
  Store store(*disk, kFolder);
  ASSERT_TRUE(store.WritePart(next.part(0, 2), Always).ok());
  EXPECT_FALSE(store.WritePart(next.part(2, 1), [] { return false; }).ok());
  const std::string folder = "/c/.incoming_" + DirectoryName(next.point);
  EXPECT_THAT(disk->List(folder).value(), ElementsAre(RankFileName(0), RankFileName(1)));
  ASSERT_TRUE(store.WritePart(next.part(2, 1), Always).ok()) << "and once more";
  EXPECT_EQ(store.Discard(next.point), absl::OkStatus());
  EXPECT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(old.point)));
}

// Nodes whose directories are not the same one.
TEST(Store, APartThatIsElsewhereIsMissed) {
  const TestCheckpoint next(1, 2, 2);
  const auto here = DiskWith({}), there = DiskWith({});
  Store store(*here, kFolder), other(*there, kFolder);
  Manifest manifest{next.point, "test", "", "", store.WritePart(next.part(0, 1), Always).value()};
  manifest.files.push_back(other.WritePart(next.part(1, 1), Always)->front());
  const absl::Status status = store.Seal(manifest, Always);
  EXPECT_THAT(Message(status), HasSubstr("rank_00001.safetensors was written and is not here"));
  EXPECT_THAT(here->List(kFolder).value(), ElementsAre()) << "nothing half is left";
}

struct Trouble {
  int error;
  bool short_write, dead;
};
class Failures : public testing::TestWithParam<Trouble> {};

// A disk that fails at one operation, or from one on: the old one or the new one is whole, and when the disk is well
// again the next flush succeeds and leaves nothing half.
TEST_P(Failures, NeverCostTheLastGoodOne) {
  const TestCheckpoint old(1, 7), next(2, 4), after(2, 6);
  int failed = 0;
  for (int at = 0;; ++at) {
    const auto disk = DiskWith({&old});
    disk->fail_at = at;
    disk->error = GetParam().error;
    disk->short_write = GetParam().short_write;
    disk->dead = GetParam().dead;
    const absl::Status status = Flush(*disk, next, 1);
    const bool reached = disk->operations > at;
    Store store(*disk, kFolder);
    ASSERT_TRUE(OneOf(store, old, next)) << "operation " << at;
    disk->fail_at = -1;
    ASSERT_EQ(Flush(*disk, after, 1), absl::OkStatus()) << "operation " << at;
    ASSERT_EQ(store.ClearLeftovers(), absl::OkStatus());
    ASSERT_TRUE(Holds(store, after));
    ASSERT_THAT(disk->List(kFolder).value(), ElementsAre(DirectoryName(after.point)));
    if (!reached) break;
    failed += !status.ok();
  }
  EXPECT_GT(failed, 15);
}
INSTANTIATE_TEST_SUITE_P(Kinds, Failures,
                         testing::Values(Trouble{ENOSPC, false, false}, Trouble{ENOSPC, true, false},
                                         Trouble{EIO, false, false}, Trouble{EIO, false, true},
                                         Trouble{EROFS, false, true}));

// The property tests can fail: a writer that syncs nothing is found out.
TEST(Store, TheSearchFindsAWriterThatDoesNotSync) {
  const TestCheckpoint old(1, 7), next(2, 4);
  const auto before = DiskWith({&old});
  const auto disk = DiskWith({&old});
  ASSERT_EQ(Flush(*disk, next, 1), absl::OkStatus());
  std::erase_if(disk->log, [](const Operation& done) { return done.kind == Operation::kSync; });
  bool found = false;
  for (size_t count = 0; count <= disk->log.size(); ++count) {
    const uint64_t all = (uint64_t{1} << disk->Loose(count)) - 1;
    const auto left = disk->Crash(*before, count, all, Unsynced::kDropped);
    found = found || !OneOf(Store(*left, kFolder), old, next);
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace lockstep::checkpoint
