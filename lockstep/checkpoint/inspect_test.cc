#include "lockstep/checkpoint/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/memory_disk.h"
#include "lockstep/checkpoint/test_slot.h"

namespace lockstep::checkpoint {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(VerifyReport, SaysOfNoneThatItIsDamagedBecauseItCanNotBeRead) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  Store store(disk, "/c");
  const TestCheckpoint old(1, 1), next(1, 2);
  ASSERT_TRUE(Write(store, old).ok() && Write(store, next).ok());
  EXPECT_EQ((*VerifyReport(store))["valid"], true);
  for (const int error : {EIO, EACCES, ENOMEM, EMFILE}) {
    disk.read_error = error;
    EXPECT_THAT(Message(VerifyReport(store).status()), StartsWith("can't be verified: /c/step_000000000002_epoch_1/"));
    disk.read_error = 0;
  }
  ASSERT_TRUE(disk.RemoveFile("/c/" + DirectoryName(next.point) + "/" + RankFileName(1)).ok());
  const auto report = VerifyReport(store);
  ASSERT_TRUE(report.ok()) << Message(report.status());
  EXPECT_EQ((*report)["valid"], false);
  EXPECT_THAT((*report)["checkpoints"][0]["why"].get<std::string>(), HasSubstr(RankFileName(1)));
  EXPECT_EQ((*report)["checkpoints"][1]["valid"], true);
}

}  // namespace
}  // namespace lockstep::checkpoint
