#include "lockstep/trace/straggler_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

absl::StatusOr<TracedJob> Job(const std::string& rows, int dp) {
  const StragglerMeta meta = DataParallelMeta(dp);
  StragglerSink sink(meta, {});
  LS_RETURN_IF_ERROR(ReadStragglerCsv(WriteTrace(kHeader + rows), sink));
  return BuildStragglerJob(sink.TakeRows(), meta);
}

// [lane] of the only op of a type.
std::vector<float> Of(const TracedJob& job, const std::vector<float>& values, OpType type) {
  for (size_t op = 0; op < job.ops.size(); ++op)
    if (job.ops[op].type == type)
      return {values.begin() + static_cast<std::ptrdiff_t>(op * job.lanes.size()),
              values.begin() + static_cast<std::ptrdiff_t>((op + 1) * job.lanes.size())};
  return {};
}

std::string Counters(const TracedJob& job) {
  std::string text;
  for (const Counter& counter : job.counters) text += fmt::format("{}={} ", counter.name, counter.count);
  return text;
}

TEST(TracedJob, WaitingIsNoTransferAndIdlingIsDelay) {
  const auto job = Job(DataParallelRows(2, 2), 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_THAT(job->steps, ElementsAre(10, 20));
  EXPECT_THAT(job->graph.first_lane, ElementsAre(0, 2, 4));
  // The reduction lasts 2 s for rank 0, which waits 1 s for rank 1.
  EXPECT_THAT(Of(*job, job->durations, OpType::kGradsReduceScatter), ElementsAre(2, 1, 2, 1));
  EXPECT_THAT(Of(*job, job->transfers, OpType::kGradsReduceScatter), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Of(*job, job->delays, OpType::kGradsReduceScatter), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(job->step_times, ElementsAre(5.5F, 5.5F));
  EXPECT_EQ(Counters(*job), "");
}

TEST(TracedJob, RowsMayStandInAnyOrder) {
  const std::string rows = DataParallelRows(3, 4);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < rows.size(); begin = rows.find('\n', begin) + 1)
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(lines.size() / 2),
                 rows.substr(begin, rows.find('\n', begin) + 1 - begin));
  std::string shuffled;
  for (const std::string& line : lines) shuffled += line;
  const auto a = Job(rows, 3), b = Job(shuffled, 3);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->transfers, b->transfers);
  EXPECT_EQ(a->delays, b->delays);
}

std::string Without(std::string rows, const std::string& gone) {
  const size_t at = rows.find(gone);
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? rows : rows.erase(at, gone.size());
}

TEST(TracedJob, ALostRowIsPutBackWhereTheOthersSayThatItWas) {
  const auto job = Job(Without(DataParallelRows(2, 3), "0,0,0,20,backward-compute,1,2,0,0,0,0\n"), 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_EQ(Counters(*job), "absent_ops=1 lost_rows_put_back=1 ");
  EXPECT_THAT(Of(*job, job->starts, OpType::kBackwardCompute), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(Of(*job, job->durations, OpType::kBackwardCompute), ElementsAre(2, 3, 2, 3, 2, 3));
}

TEST(TracedJob, AStepWithFewerMicrobatchesHasLostNothing) {
  std::string rows = DataParallelRows(2, 2);
  for (const char* rank : {"0,0,0,10", "1,0,1,10"})
    rows += fmt::format("{0},forward-compute,6,1,1,0,1,0\n{0},backward-compute,7,1,1,0,1,0\n", rank);
  const auto job = Job(rows, 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_THAT(Counters(*job), AllOf(HasSubstr("absent_ops=4 "), Not(HasSubstr("put_back"))));
}

TEST(TracedJob, HalfOfAWorkersRowsAreNotPutBack) {
  std::string rows = Without(DataParallelRows(2, 3), "0,0,0,20,forward-compute,0,1,0,0,0,0\n");
  rows = Without(rows, "0,0,0,20,grads-reduce-scatter,3,2,0,0,-1,-1\n");
  const auto job = Job(rows, 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_EQ(Counters(*job), "absent_ops=2 ");
}

// Rank 0's reduction waits for rank 1's in all steps that tell of it, and in step 20 for 3 s longer.
TEST(TracedJob, ALostCollectiveEndsWhenItsOtherMembersDo) {
  std::string rows = Without(DataParallelRows(2, 3), "0,0,0,20,grads-reduce-scatter,3,2,0,0,-1,-1\n");
  rows = Without(rows, "0,0,0,20,optimizer,5,0.5,0,0,-1,-1\n");
  rows = Without(rows, "1,0,1,20,backward-compute,1,3,0,0,0,0\n") + "1,0,1,20,backward-compute,1,6,0,0,0,0\n";
  rows =
      Without(rows, "1,0,1,20,grads-reduce-scatter,4,1,0,0,-1,-1\n") + "1,0,1,20,grads-reduce-scatter,7,1,0,0,-1,-1\n";
  rows = Without(rows, "1,0,1,20,optimizer,5,0.5,0,0,-1,-1\n") + "1,0,1,20,optimizer,8,0.5,0,0,-1,-1\n" +
         "0,0,0,20,gc,3,0,0,0,-1,-1\n";
  const auto job = Job(rows, 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_THAT(Of(*job, job->starts, OpType::kGradsReduceScatter), ElementsAre(3, 4, 3, 7, 3, 4));
  EXPECT_THAT(Of(*job, job->durations, OpType::kGradsReduceScatter), ElementsAre(2, 1, 5, 1, 2, 1));
  EXPECT_THAT(Of(*job, job->starts, OpType::kOptimizer), ElementsAre(5, 5, 8, 8, 5, 5));
}

TEST(TracedJob, AMissingLaneIsNoLane) {
  std::string trace = DataParallelRows(2, 2);
  // Rank 1 has no rows in step 20.
  for (size_t at = 0; (at = trace.find("1,0,1,20,", at)) != std::string::npos;)
    trace.erase(at, trace.find('\n', at) + 1 - at);
  const auto job = Job(trace, 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_THAT(job->graph.first_lane, ElementsAre(0, 2, 3));
  EXPECT_EQ(Counters(*job), "absent_ranks=1 unknown_transfers=1 ");
  EXPECT_THAT(Of(*job, job->transfers, OpType::kGradsReduceScatter), ElementsAre(1, 1, 1));
}

TEST(TracedJob, WhoseRowIsLostIsWaitedForAllTheSame) {
  const auto job = Job(Without(DataParallelRows(2, 3), "1,0,1,20,grads-reduce-scatter,4,1,0,0,-1,-1\n"), 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_THAT(Of(*job, job->starts, OpType::kGradsReduceScatter), ElementsAre(3, 4, 3, 4, 3, 4));
  EXPECT_THAT(Of(*job, job->transfers, OpType::kGradsReduceScatter), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_EQ(Counters(*job), "absent_ops=1 lost_rows_put_back=1 ");
}

TEST(TracedJob, ARowThatIsPutBackIsNoWordOfClocks) {
  auto job = Job(Without(DataParallelRows(2, 3), "1,0,1,20,grads-reduce-scatter,4,1,0,0,-1,-1\n"), 2);
  ASSERT_TRUE(job.ok()) << Message(job.status());
  for (uint32_t op = 0; op < job->ops.size(); ++op)
    if (job->ops[op].type == OpType::kGradsReduceScatter) job->starts[job->graph.Cell(op, 3)] = 5.3F;
  job->counters.clear();
  MeasureParts(*job);
  EXPECT_EQ(Counters(*job), "");
  EXPECT_THAT(Of(*job, job->transfers, OpType::kGradsReduceScatter), ElementsAre(1, 1, 0, 1, 1, 1));
}

TEST(TracedJob, WhereNoTransferIsKnownItIsAsShortAsTheShortest) {
  std::string rows = DataParallelRows(2, 2);
  for (const std::string row : {"0,0,0,20,grads-reduce-scatter,3,", "1,0,1,20,grads-reduce-scatter,4,"}) {
    const size_t seconds = rows.find(row) + row.size();
    rows.replace(seconds, 1, rows[seconds] == '2' ? "1.5" : "0.5");
  }
  const auto job = Job(rows, 3);  // the third has no rows
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_THAT(Of(*job, job->transfers, OpType::kGradsReduceScatter), ElementsAre(0.5F, 0.5F, 0.5F, 0.5F));
  EXPECT_EQ(Counters(*job), "absent_ranks=2 unknown_transfers=2 ");
}

TEST(TracedJob, ADuplicateRowIsRefused) {
  const std::string rows = DataParallelRows(2, 1);
  EXPECT_EQ(Message(Job(rows + rows.substr(0, rows.find('\n') + 1), 2).status()),
            "1 rows tell of an op that another row tells of");
}

TEST(TracedJob, NumbersOfOpsHaveNoGaps) {
  const auto job = Job("0,0,0,10,forward-compute,0,1,1,0,0,0\n0,0,0,10,backward-compute,1,1,0,0,0,0\n", 1);
  EXPECT_EQ(Message(job.status()),
            "forward-compute 0 of stage 0 is nowhere, but a later one is: seq_id counts from 0 without gaps");
}

}  // namespace
}  // namespace lockstep::trace
