#include "lockstep/trace/straggler_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "lockstep/trace/chakra.h"
#include "lockstep/trace/straggler_file.h"
#include "lockstep/trace/test_trace.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::trace {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// Two workers that compute forward, backward, and meet.
class Follow : public testing::Test {
 protected:
  Follow() {
    meta_.dp = 2;
    meta_.world_size = 2;
    Append("dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc\n");
  }
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  static std::string Rows(int dp, int64_t step) {
    std::string rows;
    for (const auto& [type, start, microbatch] :
         {std::tuple("forward-compute", 0.0, 0), {"backward-compute", 1.0, 0}, {"grads-reduce-scatter", 3.0, -1}})
      rows += fmt::format("{0},0,{0},{1},{2},{3},1,0,{4},{4},{4}\n", dp, step, type, start, microbatch);
    return rows;
  }
  StragglerFollower Open(size_t window = 3) { return StragglerFollower::Open(path_, meta_, window).value(); }

  StragglerMeta meta_;
  const std::string path_ = TempPath("follow.csv");
};

TEST_F(Follow, AStepIsCompleteWhenAllHaveGoneOn) {
  StragglerFollower follower = Open();
  EXPECT_FALSE(follower.Advance().value());
  Append(Rows(0, 7) + Rows(0, 8));
  EXPECT_FALSE(follower.Advance().value()) << "worker 1 has said nothing yet";
  Append(Rows(1, 7));
  EXPECT_FALSE(follower.Advance().value());
  const std::string next = Rows(1, 8);
  Append(next.substr(0, 5));
  EXPECT_FALSE(follower.Advance().value()) << "half a line";
  Append(next.substr(5));
  EXPECT_TRUE(follower.Advance().value());
  EXPECT_EQ(follower.step(), 7);
}

TEST_F(Follow, TheLastStepIsCompleteWithAsManyRowsAsTheOneBefore) {
  StragglerFollower follower = Open();
  Append(Rows(0, 7) + Rows(1, 7));
  EXPECT_FALSE(follower.Advance().value()) << "nothing tells how many rows a step has";
  const std::string last = Rows(1, 8);
  Append(Rows(0, 8) + last.substr(0, last.size() / 2));
  EXPECT_TRUE(follower.Advance().value());
  EXPECT_EQ(follower.step(), 7);
  EXPECT_FALSE(follower.Advance().value()) << "half of step 8";
  Append(last.substr(last.size() / 2));
  EXPECT_TRUE(follower.Advance().value());
  EXPECT_EQ(follower.step(), 8);
  EXPECT_FALSE(follower.Advance().value());
}

TEST_F(Follow, TheWindowMovesAndEqualsTheSameStepsReadAtOnce) {
  StragglerFollower follower = Open(2);
  for (int64_t step = 1; step <= 5; ++step) Append(Rows(1, step) + Rows(0, step));
  for (int64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(follower.Advance().value());
    EXPECT_EQ(follower.step(), step);
  }
  const TracedJob window = follower.Window().value(), whole = ReadStragglerJob(path_, meta_, {{3, 4}}).value();
  EXPECT_EQ(window.steps, whole.steps);
  EXPECT_EQ(window.durations, whole.durations);
  EXPECT_EQ(window.transfers, whole.transfers);
  EXPECT_EQ(window.ranks, whole.ranks);
}

TEST_F(Follow, AWorkerThatFellSilentHoldsNobodyUpForEver) {
  StragglerFollower follower = Open();
  Append(Rows(0, 1) + Rows(1, 1));
  for (int64_t step = 2; step <= 8; ++step) Append(Rows(0, step));
  EXPECT_FALSE(follower.Advance().value());
  Append(Rows(0, 9));
  EXPECT_TRUE(follower.Advance().value());
  Append(Rows(1, 1));
  EXPECT_FALSE(follower.Advance().value());
  const TracedJob job = follower.Window().value();
  ASSERT_EQ(job.counters.size(), 1U);
  EXPECT_EQ(job.counters[0].name, "late_rows");
  EXPECT_EQ(job.counters[0].count, 3U);
}

TEST_F(Follow, ARowIsLateAlsoWhenItsStepHasLeftTheWindow) {
  StragglerFollower follower = Open(1);
  for (int64_t step = 1; step <= 4; ++step) Append(Rows(0, step) + Rows(1, step));
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(follower.Advance().value());
  Append(Rows(1, 1) + Rows(0, 5) + Rows(1, 5));
  ASSERT_TRUE(follower.Advance().value());
  EXPECT_EQ(follower.step(), 5);
  const TracedJob job = follower.Window().value();
  ASSERT_EQ(job.counters.size(), 1U);
  EXPECT_EQ(job.counters[0].count, 3U) << job.counters[0].name;
}

TEST_F(Follow, ARowThatIsThereTwiceIsNamedWithItsPlace) {
  StragglerFollower follower = Open();
  Append(Rows(0, 1) + Rows(0, 1));
  EXPECT_THAT(Message(follower.Advance().status()),
              HasSubstr("follow.csv:5: forward-compute 0 of stage 0 is there twice in step 1, data-parallel rank 0"));
}

TEST_F(Follow, AFileThatTookItsPlaceIsNamed) {
  StragglerFollower follower = Open();
  Append(Rows(0, 1) + Rows(1, 1));
  EXPECT_FALSE(follower.Advance().value());
  const std::string next = path_ + ".next";
  std::ofstream(next) << kHeader << Rows(0, 1) << Rows(1, 1) << Rows(0, 2) << Rows(1, 2);
  std::filesystem::rename(next, path_);
  EXPECT_THAT(Message(follower.Advance().status()), HasSubstr("follow.csv: another file took its place"));
  StragglerFollower anew = Open();
  EXPECT_TRUE(anew.Advance().value());
  std::filesystem::remove(path_);
  while (anew.Advance().value_or(false)) {
  }
  EXPECT_THAT(Message(anew.Advance().status()), HasSubstr("follow.csv: No such file"));
}

TEST_F(Follow, SaysWhatIsWrongAndWhere) {
  StragglerFollower follower = Open();
  Append(Rows(0, 1) + "0,0,0,1,forward-compute,zero,1,0,0,0,0\n");
  EXPECT_THAT(Message(follower.Advance().status()), HasSubstr("follow.csv:5: start_ts is \"zero\""));
  std::filesystem::resize_file(path_, 120);
  StragglerFollower shorter = Open();
  EXPECT_FALSE(shorter.Advance().value());
  std::filesystem::resize_file(path_, 50);
  EXPECT_THAT(Message(shorter.Advance().status()), HasSubstr("became shorter"));
  std::ofstream(path_, std::ios::trunc) << "\x1f\x8bxxxx";
  EXPECT_THAT(Message(StragglerFollower::Open(path_, meta_, 1).status()), HasSubstr("expected plain CSV"));
  EXPECT_THAT(Message(StragglerFollower::Open(path_ + "none", meta_, 1).status()), HasSubstr("No such file"));
}

// Nobody writes to it: who opens it waits.
TEST_F(Follow, APipeIsRefused) {
  const std::string path = TempPath("follow.pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const absl::Status& status :
       {StragglerFollower::Open(path, meta_, 3).status(), ReadChakra(path, 0).status(), TrailFile::Open(path).status()})
    EXPECT_THAT(Message(status),
                EndsWith("follow.pipe: a pipe or a socket: it can be read only once, and only while somebody "
                         "writes to it; write it to a file and name that file"));
}

}  // namespace
}  // namespace lockstep::trace
