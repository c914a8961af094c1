// Checkpoints on disk that another number of ranks wrote.
#include "lockstep/agent/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::agent {
namespace {

using checkpoint::Point;
using testing::HasSubstr;

constexpr Point kNewest{EpochId(9), StepId(9)};

class Load : public testing::Test {
 protected:
  Load() {
    std::string path = testing::TempDir() + "lockstep-load-XXXXXX";
    spec_.checkpoint_dir = mkdtemp(path.data());
  }
  ~Load() override { std::filesystem::remove_all(spec_.checkpoint_dir); }

  // By three ranks, which the manifest says to be replicas, or says nothing of.
  void Write(int64_t step, const std::string& tensors) {
    const checkpoint::TestCheckpoint saved(1, step, 3);
    const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
    checkpoint::Store store(*disk, spec_.checkpoint_dir);
    checkpoint::Manifest manifest{saved.point, "test", "2026-01-01T00:00:00Z", "", {}};
    manifest.files = store.WritePart(saved.whole(), checkpoint::Always).value();
    for (checkpoint::ManifestFile& file : manifest.files) file.tensors = tensors;
    ASSERT_EQ(store.Seal(manifest, checkpoint::Always), absl::OkStatus());
  }
  // As the last node of a world of so many ranks, with two of them.
  Loaded LoadIn(int world) {
    spec_.ranks = 2;
    spec_.place = {1, world - 2, world, 2};
    return LoadNewest(spec_, kNewest);
  }

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

}  // namespace
}  // namespace lockstep::agent
