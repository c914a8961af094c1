// The uploader with real directories: the store is a mounted one, or none at all.
#include "lockstep/agent/uploader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/test_slot.h"
#include "lockstep/http/test_server.h"

namespace lockstep::agent {
namespace {

using checkpoint::Point;
using checkpoint::TestCheckpoint;
using testing::ElementsAre;
using testing::HasSubstr;

class Uploads : public testing::Test {
 protected:
  Uploads() {
    spec_.checkpoint_dir = folder_ / "here";
    spec_.checkpoint_upload = folder_ / "there";
    spec_.checkpoint_keep = 2;
    std::filesystem::create_directory(spec_.checkpoint_dir);
  }

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

  const TestFolder folder_;
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

TEST_F(Uploads, ComesBackWhereNothingIs) {
  for (const int64_t step : {1, 2}) Settle(Save(step));
  const std::string file = spec_.checkpoint_upload + "/" + DirectoryName(There().front()) + "/rank_00000.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  std::filesystem::remove_all(spec_.checkpoint_dir);
  const auto bring = [this] {
    return BringBack(
        spec_, true, clock_, [this](const std::string& text) { notes_.push_back(text); }, [] { return true; });
  };
  EXPECT_EQ(bring(), absl::OkStatus());
  EXPECT_THAT(checkpoint::Store(*disk_, spec_.checkpoint_dir).List().value(), ElementsAre(There().back()));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("not fetched: "), HasSubstr("fetched the checkpoint of step 1")));
  EXPECT_EQ(bring(), absl::OkStatus());
  EXPECT_EQ(notes_.size(), 2u) << "what is there is not asked for";
}

// Whoever stops while nothing is heard of the store is heard.
TEST_F(Uploads, AStoreThatSaysNothingIsNotedAndLeft) {
  const http::TestServer silent([](const std::string&) { return std::string(); });
  setenv("AWS_ENDPOINT_URL", silent.Url("").c_str(), 1);
  setenv("AWS_ACCESS_KEY_ID", "access", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  spec_.checkpoint_upload = "s3://bucket/job";
  const absl::Status status = BringBack(
      spec_, true, clock_, [this](const std::string& text) { notes_.push_back(text); },
      [this] {
        clock_.Advance(Seconds{0.3});
        return notes_.empty();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("asking s3://bucket/job for a checkpoint")));
}

}  // namespace
}  // namespace lockstep::agent
