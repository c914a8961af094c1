// Copies in a directory, in which a run may have its own checkpoints.
#include "lockstep/remote/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/test_slot.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::remote {
namespace {

using checkpoint::Always;
using checkpoint::Store;
using testing::HasSubstr;
using testing::IsEmpty;

class InADirectory : public testing::Test {
 protected:
  InADirectory() : disk_(checkpoint::PosixDisk()), here_(*disk_, folder_.path() + "/here") {
    std::filesystem::create_directory(here_.directory());
    EXPECT_EQ(Write(here_, one_), absl::OkStatus());
    copies_ = OpenCopies(folder_.path() + "/there", clock_, Always).value();
  }
  std::string lock() const { return copies_.directory + "/.lock"; }
  absl::Status Copy(const checkpoint::GoOn& go_on) {
    Store there(*copies_.disk, copies_.directory);
    const absl::Status copied = CopyTo(copies_, there, here_, one_.point, go_on, Store::Here::kBySizes);
    points_ = there.List().value();
    return copied;
  }

  const TestFolder folder_;
  const SystemClock clock_;
  const checkpoint::TestCheckpoint one_{1, 1};
  std::unique_ptr<checkpoint::Disk> disk_;
  Store here_;
  Copies copies_;
  std::vector<checkpoint::Point> points_;
};

TEST_F(InADirectory, ARunThatIsThereKeepsOthersOut) {
  ASSERT_TRUE(Prepare(copies_).ok());
  {
    const auto run = store::WriterLock::Take(lock());
    ASSERT_TRUE(run.ok());
    EXPECT_THAT(Message(Prepare(copies_).status()), HasSubstr("a run keeps its own checkpoints there"));
  }
  EXPECT_TRUE(Prepare(copies_).ok()) << "it has ended";
}

TEST_F(InADirectory, ALockThatCanNotBeLookedAtCountsAsHeld) {
  ASSERT_TRUE(Prepare(copies_).ok());
  std::filesystem::create_symlink(".lock", lock());  // as EACCES, for root too
  const absl::Status status = Prepare(copies_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("can't be opened"));
}

TEST_F(InADirectory, ARunThatBeginsMeanwhileEndsACopyUpToItsLastMoment) {
  ASSERT_TRUE(Prepare(copies_).ok());
  int asked = 0;
  ASSERT_EQ(Copy([&] { return ++asked, true; }), absl::OkStatus());
  std::filesystem::remove_all(copies_.directory);
  for (int at = 1; at <= asked; ++at) {
    ASSERT_TRUE(Prepare(copies_).ok());
    std::optional<store::WriterLock> run;
    int left = at;
    const absl::Status status = Copy([&] {
      if (--left == 0) run = store::WriterLock::Take(lock()).value();
      return true;
    });
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << at << ": " << status;
    EXPECT_THAT(points_, IsEmpty()) << at;
  }
}

}  // namespace
}  // namespace lockstep::remote
