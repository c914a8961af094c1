// Checkpoints on disk that another number of ranks wrote.
#include "lockstep/agent/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::agent {
namespace {

using checkpoint::Point;
using testing::HasSubstr;

constexpr Point kNewest{EpochId(9), StepId(9)};

class Load : public testing::Test {
 protected:
  Load() { spec_.checkpoint_dir = folder_.path(); }

  // By three ranks, which the manifest says to be replicas, or says nothing of.
  void Write(int64_t step, const std::string& tensors, bool cut = false) {
    const checkpoint::TestCheckpoint saved(1, step, 3);
    const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
    checkpoint::Store store(*disk, spec_.checkpoint_dir);
    checkpoint::Manifest manifest{saved.point, "test", "2026-01-01T00:00:00Z", "", {}};
    manifest.files = store.WritePart(saved.whole(), checkpoint::Always).value();
    for (checkpoint::ManifestFile& file : manifest.files) {
      file.tensors = tensors;
      file.cut = cut;
    }
    ASSERT_EQ(store.Seal(manifest, checkpoint::Always), absl::OkStatus());
  }
  // As the last node of a world of so many ranks, with two of them.
  Loaded LoadIn(int world) {
    spec_.ranks = 2;
    spec_.place = {1, world - 2, world, 2};
    return LoadNewest(spec_, kNewest);
  }

  const TestFolder folder_;
  RunSpec spec_;
};

TEST_F(Load, TakesReplicasInAWorldOfAnySize) {
  Write(7, "00ff");
  for (const int world : {2, 3, 4, 5}) {
    const Loaded loaded = LoadIn(world);
    ASSERT_TRUE(loaded.point) << world << ": " << loaded.unfit;
    EXPECT_EQ(loaded.point->step, StepId(7));
    ASSERT_EQ(loaded.buffers.size(), 2u);
    const checkpoint::TestCheckpoint saved(1, 7, 3);
    for (int rank = 0; rank < 2; ++rank) {
      const auto& image = saved.slots[static_cast<size_t>(world - 2 + rank) % 3].image();
      EXPECT_EQ(loaded.slots[static_cast<size_t>(rank)].crc32c, image.crc32c) << "ranks are dealt out anew";
    }
    EXPECT_EQ(CheckNewest(spec_), absl::OkStatus());
  }
}

TEST_F(Load, WhatAnotherWorldWroteOfRanksThatDifferIsNotTaken) {
  Write(6, "00ff");
  Write(7, "");
  const Loaded loaded = LoadIn(4);
  EXPECT_FALSE(loaded.point) << "nothing older is taken in its place";
  EXPECT_THAT(loaded.unfit,
              HasSubstr("step_000000000007_epoch_1 was written by 3 ranks, this job has 4: start it with 3"));
  EXPECT_EQ(Message(CheckNewest(spec_)), loaded.unfit);
  EXPECT_TRUE(LoadIn(3).point);
}

TEST_F(Load, WhatTheScriptCutsAnewStaysOnDisk) {
  Write(7, "", true);
  const Loaded loaded = LoadIn(4);
  ASSERT_TRUE(loaded.point) << loaded.unfit;
  EXPECT_EQ(loaded.written_by, 3u);
  EXPECT_TRUE(loaded.buffers.empty());
  EXPECT_EQ(CheckNewest(spec_), absl::OkStatus());
  EXPECT_EQ(LoadIn(3).buffers.size(), 2u) << "its own world takes it as it is";
}

// One that is damaged is passed over. One that could not be read, or has no room, may be whole.
TEST_F(Load, NothingOlderIsTakenForWhatCanNotBeReadHere) {
  const std::string folder = spec_.checkpoint_dir + "/step_000000000007_epoch_1";
  Write(6, "00ff");
  Write(7, "00ff");
  spec_.checkpoint_budget = Bytes{1};
  Loaded loaded = LoadIn(3);
  EXPECT_FALSE(loaded.point);
  EXPECT_THAT(loaded.rejected, testing::IsEmpty());
  EXPECT_THAT(loaded.unfit, testing::StartsWith(folder + " can't be loaded on node 1, and nothing older is taken in "
                                                         "its place: checkpoint buffers: "));
  spec_.checkpoint_budget = {};
  std::filesystem::remove(folder + "/manifest.json");
  std::filesystem::create_symlink("manifest.json", folder + "/manifest.json");  // to itself
  loaded = LoadIn(3);
  EXPECT_FALSE(loaded.point);
  EXPECT_THAT(loaded.unfit, HasSubstr("Too many levels of symbolic links"));
  EXPECT_EQ(CheckNewest(spec_), absl::OkStatus()) << "that may pass: it is loaded later";
  std::filesystem::remove(folder + "/manifest.json");
  loaded = LoadIn(3);
  ASSERT_TRUE(loaded.point) << "damaged";
  EXPECT_EQ(loaded.point->step, StepId(6));
  EXPECT_EQ(loaded.rejected.size(), 1u);
  EXPECT_EQ(CheckNewest(spec_), absl::OkStatus());
}

// As of a file system of the network, for a while.
TEST_F(Load, WhatCanNotBeReadForNowIsTriedAgain) {
  const std::string manifest = spec_.checkpoint_dir + "/step_000000000007_epoch_1/manifest.json";
  Write(6, "00ff");
  Write(7, "00ff");
  LoadIn(3);
  std::filesystem::rename(manifest, manifest + ".away");
  std::filesystem::create_symlink("manifest.json", manifest);  // to itself
  int asked = 0;
  const auto thrice = [&](const std::string& why) {
    EXPECT_THAT(why, HasSubstr("Too many levels of symbolic links"));
    return ++asked < 3;
  };
  EXPECT_THAT(LoadNewest(spec_, kNewest, thrice).unfit, HasSubstr("Too many levels"));
  EXPECT_EQ(asked, 3);
  const Loaded loaded = LoadNewest(spec_, kNewest, [&](const std::string&) {
    if (++asked == 5) std::filesystem::rename(manifest + ".away", manifest);
    return true;
  });
  EXPECT_EQ(asked, 5);
  ASSERT_TRUE(loaded.point) << loaded.unfit;
  EXPECT_EQ(loaded.point->step, StepId(7));
  spec_.checkpoint_budget = Bytes{1};
  EXPECT_NE(LoadNewest(spec_, kNewest, [&](const std::string&) { return ++asked < 10; }).unfit, "");
  EXPECT_EQ(asked, 5) << "room does not come by waiting";
}

TEST_F(Load, ADirectoryThatCanNotBeReadIsNotAnEmptyOne) {
  spec_.checkpoint_dir += "/gone";
  EXPECT_THAT(LoadIn(3).unfit, testing::IsEmpty());
  EXPECT_EQ(FirstEpoch(spec_).value(), 1u);
  std::filesystem::create_symlink("gone", spec_.checkpoint_dir);
  EXPECT_THAT(LoadIn(3).unfit, HasSubstr("Too many levels of symbolic links"));
  EXPECT_EQ(CheckNewest(spec_), absl::OkStatus()) << "that may pass: it is loaded later";
}

TEST_F(Load, TheFirstEpochIsAskedForAgainToo) {
  Write(7, "00ff");
  const std::string folder = std::exchange(spec_.checkpoint_dir, spec_.checkpoint_dir + "/link");
  std::filesystem::create_symlink("link", spec_.checkpoint_dir);  // to itself
  EXPECT_THAT(Message(FirstEpoch(spec_).status()), HasSubstr("Too many levels of symbolic links"));
  int asked = 0;
  const auto again = [&](const std::string& why) {
    EXPECT_THAT(why, HasSubstr("Too many levels of symbolic links"));
    if (++asked < 3) return true;
    std::filesystem::remove(spec_.checkpoint_dir);
    std::filesystem::create_directory_symlink(folder, spec_.checkpoint_dir);
    return true;
  };
  EXPECT_EQ(FirstEpoch(spec_, again).value(), 2u);
  EXPECT_EQ(asked, 3);
}

TEST(UntilItPassed, NotesTheFirstFailureAtOnceAndEndsAfter45Seconds) {
  FakeClock clock;
  std::vector<std::string> notes;
  const auto note = [&](const std::string& text) { notes.push_back(text); };
  bool stops = false;
  const auto pause = [&](Seconds seconds) {
    EXPECT_THAT(notes, testing::ElementsAre("not loaded yet, and tried again for 45 s: it hangs"));
    clock.Advance(seconds);
    return !stops;
  };
  const Again again = UntilItPassed(clock, note, pause);
  int attempts = 0;
  while (again("it hangs")) ++attempts;
  EXPECT_EQ(attempts, 44);
  notes.clear();
  stops = true;
  EXPECT_FALSE(UntilItPassed(clock, note, pause)("it hangs"));
}

TEST_F(Load, EachNodeReadsItsShareOfWhatStaysOnDisk) {
  Write(7, "", true);
  std::filesystem::resize_file(spec_.checkpoint_dir + "/step_000000000007_epoch_1/rank_00001.safetensors", 10);
  EXPECT_FALSE(LoadIn(4).point);
  Write(8, "", true);
  const std::string file = spec_.checkpoint_dir + "/step_000000000008_epoch_1/rank_00001.safetensors";
  std::fstream(file, std::ios::in | std::ios::out).seekp(-1, std::ios::end) << '!';
  EXPECT_FALSE(LoadIn(4).point) << "node 1 of 2 reads that of rank 1";
  spec_.place.node = 0;
  EXPECT_TRUE(LoadNewest(spec_, kNewest).point);
}

}  // namespace
}  // namespace lockstep::agent
