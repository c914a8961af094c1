// The uploader with real directories: the store is a mounted one, or none at all.
#include "lockstep/agent/uploader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::agent {
namespace {

using checkpoint::Point;
using checkpoint::TestCheckpoint;
using testing::ElementsAre;
using testing::HasSubstr;

class Uploads : public testing::Test {
 protected:
  Uploads() {
    std::string path = testing::TempDir() + "lockstep-upload-XXXXXX";
    folder_ = mkdtemp(path.data());
    spec_.checkpoint_dir = folder_ + "/here";
    spec_.checkpoint_upload = folder_ + "/there";
    spec_.checkpoint_keep = 2;
    std::filesystem::create_directory(spec_.checkpoint_dir);
  }
  ~Uploads() override { std::filesystem::remove_all(folder_); }

  Point Save(int64_t step) {
    const TestCheckpoint checkpoint(1, step);
    checkpoint::Store store(*disk_, spec_.checkpoint_dir);
    EXPECT_EQ(Write(store, checkpoint), absl::OkStatus());
    return checkpoint.point;
  }
  // Until nothing is under way.
  void Settle(const Point& newest) {
    uploader_.Tick(newest);
    while (uploader_.Observe()->uploading) {
      std::this_thread::yield();
      uploader_.Tick(newest);
    }
  }
  std::vector<Point> There() const { return checkpoint::Store(*disk_, spec_.checkpoint_upload).List().value(); }
  void Block() { std::ofstream(spec_.checkpoint_upload) << "no directory"; }

  std::string folder_;
  RunSpec spec_;
  FakeClock clock_;
  std::unique_ptr<checkpoint::Disk> disk_ = checkpoint::PosixDisk();
  std::vector<std::string> notes_;
  Uploader uploader_{spec_, clock_, [this](const std::string& text) { notes_.push_back(text); }};
};

TEST_F(Uploads, TheNewestAndNothingTwice) {
  for (const int64_t step : {1, 2, 3}) Settle(Save(step));
  uploader_.Tick(There().front());
  EXPECT_FALSE(uploader_.Observe()->uploading);
  EXPECT_EQ(uploader_.Observe()->uploads, 3);
  ASSERT_EQ(There().size(), 2u);
  EXPECT_EQ(checkpoint::Store(*disk_, spec_.checkpoint_upload).Verify(There().front()), absl::OkStatus());
  EXPECT_THAT(notes_, ElementsAre());
}

TEST_F(Uploads, AStoreThatFailsIsToldOnceCountedAndTriedAgainLater) {
  const Point point = Save(1);
  Block();
  Settle(point);
  EXPECT_EQ(uploader_.Observe()->failures, 1);
  Settle(point);
  EXPECT_EQ(uploader_.Observe()->failures, 1) << "not at once";
  clock_.Advance(Seconds{31});
  Settle(point);
  EXPECT_EQ(uploader_.Observe()->failures, 2);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("training goes on")));
  std::filesystem::remove(spec_.checkpoint_upload);
  clock_.Advance(Seconds{31});
  Settle(point);
  EXPECT_THAT(There(), ElementsAre(point));
  EXPECT_EQ(uploader_.Observe()->error, "");
}

TEST_F(Uploads, TheLastIsTriedOnceWhateverFailedBefore) {
  const Point point = Save(1);
  Block();
  Settle(point);
  bool done = false;
  uploader_.UploadLast([&done] { done = true; });
  while (!done) uploader_.Tick(point);
  EXPECT_EQ(uploader_.Observe()->failures, 2);
}

TEST_F(Uploads, AfterGivingUpNothingIsBegun) {
  const Point point = Save(1);
  uploader_.GiveUp("a second signal");
  bool done = false;
  uploader_.UploadLast([&done] { done = true; });
  uploader_.Tick(point);
  EXPECT_TRUE(done);
  EXPECT_FALSE(std::filesystem::exists(spec_.checkpoint_upload));
}

TEST_F(Uploads, WithoutAStoreTheEndDoesNotWait) {
  spec_.checkpoint_upload.clear();
  bool done = false;
  uploader_.UploadLast([&done] { done = true; });
  EXPECT_TRUE(done);
  EXPECT_FALSE(uploader_.Observe());
}

}  // namespace
}  // namespace lockstep::agent
