#include "lockstep/explain/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/straggler_job.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

// Two data-parallel ranks: forward 1 s, backward 2 s and 3 s, reduction 1 s behind the slower, optimizer 0.5 s.
class TwoRanks : public testing::Test {
 protected:
  void SetUp() override {
    const trace::StragglerMeta meta = trace::DataParallelMeta(2);
    trace::StragglerSink sink(meta, {});
    ASSERT_TRUE(trace::ReadStragglerCsv(trace::WriteTrace(trace::kHeader + trace::DataParallelRows(2, 3)), sink).ok());
    auto job = trace::BuildStragglerJob(sink.TakeRows(), meta);
    ASSERT_TRUE(job.ok()) << Message(job.status());
    job_ = std::make_unique<trace::TracedJob>(*std::move(job));
    analysis_ = std::make_unique<WhatIf>(*job_);
  }
  std::unique_ptr<trace::TracedJob> job_;
  std::unique_ptr<WhatIf> analysis_;
};

// T_nodelay = 1 + 3 + 1 + 0.5; ideal backward = (2 + 3) / 2, so T_ideal = 1 + 2.5 + 1 + 0.5. S = 5.5 / 5.
TEST_F(TwoRanks, Slowdown) {
  EXPECT_THAT(analysis_->nodelay(), ElementsAre(5.5, 5.5, 5.5));
  EXPECT_THAT(analysis_->ideal(), ElementsAre(5, 5, 5));
  EXPECT_DOUBLE_EQ(analysis_->slowdown(), 1.1);
  EXPECT_DOUBLE_EQ(analysis_->launch_slowdown(), 1);
}

// Rank 0 alone as measured: the ideal rank 1 takes 2.5 s, so nothing changes; rank 1 alone has all of the loss.
TEST_F(TwoRanks, TheSlowRankHasIt) {
  EXPECT_THAT(analysis_->Blocking(By::kDp).total, ElementsAre(1, DoubleNear(1.1, 1e-12)));
  EXPECT_THAT(analysis_->Blocking(By::kStage).total, ElementsAre(DoubleNear(1.1, 1e-12)));
  const std::vector<WhatIf::WorkerCost> workers = analysis_->ByWorker();
  EXPECT_EQ(workers.at(0).worker, WhatIf::Worker(1, 0));
  EXPECT_DOUBLE_EQ(workers[0].slowdown, 1.1);
  EXPECT_EQ(workers.at(1).slowdown, 1);
  EXPECT_DOUBLE_EQ(analysis_->RemoveCostliest(workers).rem, 1);
  const Split& kinds = analysis_->Blocking(By::kKind);
  EXPECT_THAT(kinds.names, ElementsAre("forward-compute", "backward-compute", "grads-reduce-scatter", "optimizer"));
  EXPECT_THAT(kinds.total, ElementsAre(1, DoubleNear(1.1, 1e-12), 1, 1));
}

// With rank 1 ideal rank 0 still takes 2 s and rank 1 2.5 s: T = 5.
TEST_F(TwoRanks, RemovingTheSlowRankRemovesTheLoss) {
  EXPECT_DOUBLE_EQ(analysis_->RemoveWorkers({{1, 0}}).rem, 1);
  EXPECT_DOUBLE_EQ(analysis_->RemoveWorkers({{0, 0}}).rem, 0);
  EXPECT_DOUBLE_EQ(analysis_->RemoveWorkers({{0, 0}, {1, 0}}).rem, 1);
  EXPECT_DOUBLE_EQ(analysis_->RemoveStage(0).add, 1);
}

// Forward, backward and reduction of rank 1, for which rank 0 waits; then an optimizer, of rank 0 as of equals.
TEST_F(TwoRanks, TheCriticalPathGoesThroughTheSlowRank) {
  const PathCost cost = analysis_->CriticalPath();
  EXPECT_THAT(cost.by_kind, ElementsAre(1, 3, 1, 0.5));
  EXPECT_EQ(cost.late_starts, 0);
  EXPECT_THAT(cost.by_worker, ElementsAre(ElementsAre(1.5), ElementsAre(4)));
}

}  // namespace
}  // namespace lockstep::explain
