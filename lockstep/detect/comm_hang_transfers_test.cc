// Jobs that hang in sends and receives.
#include <gmock/gmock.h>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/comm_test_job.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Syndrome;
using testing::ElementsAre;
using testing::HasSubstr;
using trace::Direction;
using trace::OpState;

TEST(CommHang, APipelineHangsByTransfersAlone) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1, 2, 3});
  job.Transfer(pipe, 1, Direction::kReceive, 0);
  job.Transfer(pipe, 2, Direction::kReceive, 1);
  job.Transfer(pipe, 3, Direction::kReceive, 2);
  job.Report(0);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kNonCommunicationHang);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(0));
  EXPECT_FALSE(diagnosis.findings[0].certain) << "its end may have been launched and forgotten";
}

TEST(CommHang, ATransferWhoseEndsAreBothLaunchedIsALink) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1});
  job.Transfer(pipe, 0, Direction::kSend, 1);
  job.Transfer(pipe, 1, Direction::kReceive, 0);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kCommunicationHang);
  EXPECT_EQ(diagnosis.findings[0].suspects[0].name, "0->1");
  EXPECT_THAT(RanksOf(diagnosis.findings[0].ambiguous_with), ElementsAre(0, 1));
  EXPECT_FALSE(diagnosis.findings[0].certain);
}

// The message is lost: its sender has gone on to what the others wait in.
TEST(CommHang, AReceiveWhoseSendHasEndedIsALink) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2}), pipe = job.AddGroup({0, 1});
  for (const OpState state : {OpState::kCompleted, OpState::kScheduled}) {
    job.Transfer(pipe, 0, Direction::kSend, 1, OpState::kCompleted);
    job.Transfer(pipe, 1, Direction::kReceive, 0, state);
  }
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 3, rank == 1 ? 3 : 4);
  job.log().whole = {0, 1, 2};
  CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kCommunicationHang);
  EXPECT_EQ(diagnosis.findings[0].suspects.at(0).name, "0->1");
  EXPECT_THAT(RanksOf(diagnosis.findings[0].ambiguous_with), ElementsAre(0, 1));
  EXPECT_THAT(diagnosis.findings[0].evidence, ElementsAre(HasSubstr("rank 0 has ended its end")));
  EXPECT_FALSE(diagnosis.findings[0].certain);

  // Of the receiver's older ops some are lost, and perhaps receives among them.
  job.log().whole = {0, 2};
  diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_FALSE(diagnosis.findings[0].certain);

  // One more receive than sends: a circle, and software's doing, unless a send is lost.
  job.Transfer(pipe, 1, Direction::kReceive, 0, OpState::kCompleted);
  job.log().ops.back().order = -1;
  for (const bool whole : {true, false}) {
    job.log().whole = whole ? std::set<int>{0, 1, 2} : std::set<int>{1, 2};
    diagnosis = job.Diagnose();
    ASSERT_EQ(diagnosis.findings.size(), 1U);
    EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
    EXPECT_EQ(diagnosis.findings[0].certain, whole);
  }
}

// A ring, as attention over a sequence in parts: all list the receive first.
TEST(CommHang, TransfersThatRunTogetherDoNotWaitForEachOther) {
  for (const int64_t batch : {trace::CommOp::kAlone, trace::CommOp::kUnderWay, int64_t{7}}) {
    Job job;
    const uint32_t ring = job.AddGroup({0, 1, 2, 3});
    for (int rank = 0; rank < 4; ++rank)
      job.Batch(ring, rank, {{Direction::kReceive, (rank + 3) % 4}, {Direction::kSend, (rank + 1) % 4}});
    for (trace::CommOp& op : job.log().ops) op.batch = batch;
    job.log().whole = {0, 1, 2, 3};
    const CommDiagnosis diagnosis = job.Diagnose();
    ASSERT_EQ(diagnosis.findings.size(), 1U);
    const Finding& finding = diagnosis.findings[0];
    if (batch == trace::CommOp::kAlone) {
      EXPECT_EQ(finding.syndrome, Syndrome::kDeadlock);
      EXPECT_TRUE(finding.certain);
      continue;
    }
    EXPECT_EQ(finding.syndrome, Syndrome::kCommunicationHang);
    EXPECT_THAT(NamesOf(finding.suspects), ElementsAre("0->1", "1->2", "2->3", "3->0"));
    EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(finding.evidence.size(), 4U) << "each transfer once";
    EXPECT_FALSE(finding.certain);
  }
}

TEST(CommHang, ATransferUnderWayIsBehindNothing) {
  for (const int64_t batch : {trace::CommOp::kAlone, trace::CommOp::kUnderWay}) {
    Job job;
    const uint32_t pipe = job.AddGroup({0, 1}), pair = job.AddGroup({1, 2});
    job.Collectives(pair, 1, 3, 4);
    job.Transfer(pipe, 1, Direction::kSend, 0);
    job.Transfer(pipe, 0, Direction::kReceive, 1);
    job.Transfer(pipe, 2, Direction::kReceive, 0);
    for (trace::CommOp& op : job.log().ops)
      if (op.direction != Direction::kCollective) op.batch = batch;
    job.log().whole = {0, 1, 2};
    const CommDiagnosis diagnosis = job.Diagnose();
    ASSERT_EQ(diagnosis.findings.size(), 1U);
    EXPECT_EQ(diagnosis.findings[0].syndrome,
              batch == trace::CommOp::kAlone ? Syndrome::kDeadlock : Syndrome::kCommunicationHang);
    EXPECT_EQ(diagnosis.findings[0].suspects.at(0).name == "1->0", batch == trace::CommOp::kUnderWay);
  }
}

// Stages of an interleaved pipeline exchange with both neighbours at once; one has not come.
TEST(CommHang, OfABatchAllTransfersCount) {
  for (int culprit = 0; culprit < 4; ++culprit)
    for (const bool silent : {false, true}) {
      Job job;
      const uint32_t pipe = job.AddGroup({0, 1, 2, 3});
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == culprit && silent) continue;
        std::vector<std::pair<Direction, int>> transfers;
        for (const int peer : {rank - 1, rank + 1})
          if (peer >= 0 && peer < 4)
            transfers.insert(transfers.end(), {{Direction::kSend, peer}, {Direction::kReceive, peer}});
        job.Batch(pipe, rank, transfers, OpState::kCompleted);
        if (rank != culprit) job.Batch(pipe, rank, transfers);
        if (!silent) job.log().whole.insert(rank);
      }
      const CommDiagnosis diagnosis = job.Diagnose();
      EXPECT_THAT(Named(diagnosis), ElementsAre(culprit)) << silent;
      EXPECT_EQ(diagnosis.findings.size(), 1U) << "no link between others";
    }
}

TEST(CommHang, OfABatchASendCounts) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1, 2});
  job.Batch(pipe, 1, {{Direction::kReceive, 0}, {Direction::kSend, 2}});
  job.Batch(pipe, 0, {{Direction::kSend, 1}});
  job.Report(2);
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(2));
  EXPECT_THAT(diagnosis.findings.at(0).evidence, ElementsAre(HasSubstr("rank 1 waits in a send to rank 2")));
}

// What rank 0 got nothing from may be the way, too, and then nobody did anything in another order.
TEST(CommHang, ACircleIsNotCertainWhereATransferIsThereOnBothSides) {
  for (const bool both : {true, false}) {
    Job job;
    const uint32_t pipe = job.AddGroup(both ? std::vector{0, 1, 2} : std::vector{0, 1}), pair = job.AddGroup({0, 1});
    std::vector<std::pair<Direction, int>> transfers = {{Direction::kReceive, 1}};
    if (both) transfers.emplace_back(Direction::kReceive, 2);
    job.Batch(pipe, 0, transfers);
    if (both) job.Batch(pipe, 2, {{Direction::kSend, 0}});
    job.Collectives(pair, 1, 3, 4);
    job.log().whole = {0, 1, 2};
    const CommDiagnosis diagnosis = job.Diagnose();
    const Finding& finding = diagnosis.findings.at(0);
    EXPECT_EQ(finding.syndrome, Syndrome::kDeadlock);
    EXPECT_EQ(finding.certain, !both);
    EXPECT_EQ(NamesOf(finding.ambiguous_with), both ? std::vector<std::string>{"2->0"} : std::vector<std::string>{});
  }
}

// Rank 0 may wait in the collective alone: a receive that is posted early holds nobody yet.
TEST(CommHang, ACircleIsNotCertainWhereMoreIsUnderWay) {
  for (const bool more : {true, false}) {
    Job job;
    const uint32_t pipe = job.AddGroup({0, 1}), pair = job.AddGroup({0, 2});
    for (const int rank : {0, 1}) {
      job.Transfer(pipe, rank, Direction::kReceive, 1 - rank);
      job.log().ops.back().batch = trace::CommOp::kUnderWay;
    }
    for (const int rank : {0, 2}) job.Collectives(pair, rank, 3, more || rank == 2 ? 4 : 3);
    job.log().whole = {0, 1, 2};
    const CommDiagnosis diagnosis = job.Diagnose();
    ASSERT_EQ(diagnosis.findings.size(), 1U);
    EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
    EXPECT_EQ(diagnosis.findings[0].certain, !more);
  }
}

// It has enqueued the collective behind a send to a rank that is gone.
TEST(CommHang, WhoIsHeldInASendIsNotInWhatItLaunchedBehind) {
  for (const int hops : {1, 2}) {
    Job job;
    const int gone = 1 + hops;
    const uint32_t pair = job.AddGroup({0, 1}), pipe = job.AddGroup({1, 2, 3});
    if (hops == 2) job.Transfer(pipe, 2, Direction::kSend, gone);
    if (hops == 2) job.Transfer(pipe, 2, Direction::kReceive, 1);
    job.Transfer(pipe, 1, Direction::kSend, 2);
    if (hops == 1) job.log().communicators[pipe].ranks = {1, 2};
    for (const int rank : {0, 1}) job.Collectives(pair, rank, 3, 4);
    const CommDiagnosis diagnosis = job.Diagnose();
    EXPECT_THAT(Named(diagnosis), ElementsAre(gone));
    ASSERT_EQ(diagnosis.findings.size(), 1U);
    EXPECT_THAT(diagnosis.findings[0].evidence, ElementsAre(HasSubstr(fmt::format("send to rank {}", gone))));
  }
}

// It has reported, and is in nothing: what it launched has ended.
TEST(CommHang, WhoIsHeldInASendWaitsForWhoHasNotLaunchedItsReceive) {
  for (const bool whole : {true, false}) {
    Job job;
    const uint32_t pipe = job.AddGroup({0, 1, 2});
    job.Transfer(pipe, 1, Direction::kSend, 2, OpState::kCompleted);
    job.Transfer(pipe, 2, Direction::kReceive, 1, OpState::kCompleted);
    job.Transfer(pipe, 1, Direction::kSend, 2);
    job.Transfer(pipe, 1, Direction::kReceive, 0);
    job.Transfer(pipe, 0, Direction::kSend, 1);
    if (whole) job.log().whole = {0, 1, 2};
    const CommDiagnosis diagnosis = job.Diagnose();
    ASSERT_EQ(diagnosis.findings.size(), 1U);
    EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kNonCommunicationHang);
    EXPECT_THAT(Named(diagnosis), ElementsAre(2));
    EXPECT_THAT(
        diagnosis.findings[0].evidence,
        ElementsAre(HasSubstr(whole ? "rank 1 waits in a send to rank 2 in communicator 0; rank 2 has not launched"
                                    : "rank 2 has no end of it under way")));
    EXPECT_FALSE(diagnosis.findings[0].certain);
  }
}

// Its receive has ended, and so it holds nobody.
TEST(CommHang, WhoHasEndedItsReceiveHoldsNobody) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1, 2});
  job.Transfer(pipe, 1, Direction::kSend, 2);
  job.Transfer(pipe, 2, Direction::kReceive, 1, OpState::kCompleted);
  job.Transfer(pipe, 1, Direction::kReceive, 0);
  job.Transfer(pipe, 0, Direction::kSend, 1);
  job.log().whole = {0, 1, 2};
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].suspects.at(0).name, "0->1");
}

// By what rank 1 runs together neither it nor rank 0 can go on; nobody else explains it.
TEST(CommHang, WhoMayBeHeldIsToldWhereNobodyElseCanBe) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1, 2}), pair = job.AddGroup({0, 2});
  job.Batch(pipe, 0, {{Direction::kReceive, 1}});
  job.Batch(pipe, 1, {{Direction::kSend, 0}, {Direction::kReceive, 2}});
  job.Collectives(pair, 2, 3, 4);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].suspects.at(0).name, "1->0");
}

TEST(CommHang, TransfersOfDifferentSizeAreAMismatch) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1});
  for (const OpState state : {OpState::kCompleted, OpState::kScheduled}) {
    job.Transfer(pipe, 0, Direction::kSend, 1, OpState::kCompleted);
    job.Shape(state == OpState::kCompleted ? "[2,4] Float" : "[4] Float");
    job.Transfer(pipe, 1, Direction::kReceive, 0, state);
  }
  EXPECT_NE(job.Diagnose().findings.at(0).syndrome, Syndrome::kMismatched) << "which belong together?";
  job.log().whole = {0, 1};
  CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kMismatched);
  EXPECT_THAT(Named(diagnosis), ElementsAre(0, 1));
  EXPECT_THAT(diagnosis.findings[0].evidence, ElementsAre(HasSubstr("of [8] Float; it is of [4] Float on rank 0")));
  EXPECT_FALSE(diagnosis.findings[0].certain);
  std::ranges::replace(job.log().shapes, "[4] Float", "[4,2] Float");
  EXPECT_EQ(job.Diagnose().findings.at(0).syndrome, Syndrome::kCommunicationHang) << "as many elements";
}

}  // namespace
}  // namespace lockstep::detect
