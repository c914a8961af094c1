#include "lockstep/detect/stack_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/detect/stack_test_job.h"

namespace lockstep::detect {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using trace::ProcessRole;
using trace::ProcessStack;

std::string Letters(int number) { return {static_cast<char>('a' + number / 26), static_cast<char>('a' + number % 26)}; }

// Every second rank waits in a collective, each other one is at a place of its own.
StackVerdict EachElsewhere(int ranks) {
  FrameWriter write;
  std::vector<ProcessStack> stacks;
  for (int rank = 0; rank < ranks; ++rank) {
    stacks.push_back(StackOf(rank, rank % 2 == 0 ? At::kGradSync : At::kLoadsData, write));
    if (rank % 2 == 1) stacks.back().python = {"/home/me/job.py:5 in at_" + Letters(rank / 2)};
    ProcessStack worker;
    worker.rank = rank;
    worker.role = ProcessRole::kDataWorker;
    worker.native = {"sem_wait (libc.so.6)"};
    stacks.push_back(std::move(worker));
  }
  absl::StatusOr<StackVerdict> verdict = AggregateStacks(stacks);
  EXPECT_TRUE(verdict.ok()) << verdict.status();
  return *std::move(verdict);
}

TEST(StackReport, APersonIsToldTheLargestClustersAndHowManyAreLeft) {
  const Json report = StackReport(EachElsewhere(1000), Reader::kPerson);
  ASSERT_THAT(report["clusters"], SizeIs(16));
  EXPECT_EQ(report["clusters"][0]["processes"], 500);
  EXPECT_EQ(report["clusters"][15]["role"], "data_worker");  // the last of all, and the largest
  EXPECT_EQ(report["clusters_left"], "486 smaller clusters with processes of 486 ranks; --json has all");
  EXPECT_THAT(report["clusters"][0]["ranks"], HasSubstr(", 46 and 476 more"));
  EXPECT_LT(RenderText(report).size(), 20000U);
}

TEST(StackReport, AProgramIsToldAll) {
  const Json report = StackReport(EachElsewhere(1000));
  EXPECT_THAT(report["clusters"], SizeIs(502));
  EXPECT_FALSE(report.contains("clusters_left"));
  EXPECT_THAT(report["clusters"][0]["ranks"], HasSubstr("996, 998"));
  EXPECT_THAT(OneLine(report), Not(HasSubstr("more")));
}

TEST(StackReport, OfFewClustersNoneIsLeft) {
  const Json report = StackReport(EachElsewhere(28), Reader::kPerson);  // 14 places, the collective and the workers'
  EXPECT_THAT(report["clusters"], SizeIs(16));
  EXPECT_FALSE(report.contains("clusters_left"));
}

}  // namespace
}  // namespace lockstep::detect
