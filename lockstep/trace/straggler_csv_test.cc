#include "lockstep/trace/straggler_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/straggler_file.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

using testing::HasSubstr;

class StragglerCsv : public testing::Test {
 protected:
  absl::Status Read(const std::string& text, std::vector<StepRange> steps = {}) {
    sink_ = std::make_unique<StragglerSink>(meta_, std::move(steps));
    return ReadStragglerCsv(WriteTrace(text), *sink_);
  }
  // With one more line behind a good row.
  std::string ErrorOf(const std::string& line) {
    return Message(Read(kHeader + std::string("0,0,0,10,forward-compute,0,1,0,0,0,0\n") + line));
  }

  StragglerMeta meta_ = DataParallelMeta(2);
  std::unique_ptr<StragglerSink> sink_;
};

TEST_F(StragglerCsv, ColumnsMayStandInAnyOrderAmongOthers) {
  ASSERT_TRUE(Read("optype,host,step,dp_rank,stage,rank,duration,start_ts,gmc,mb_id,mc,seq_id\r\n"
                   "gc,node1,30,1,0,1,0.25,1.5,-1,0,-1,0\r\n")
                  .ok());
  const StragglerRows rows = sink_->TakeRows();
  ASSERT_EQ(rows.size(), 1U);
  const StragglerRow& row = rows.pieces[0][0];
  EXPECT_EQ(row.type, OpType::kGc);
  EXPECT_EQ(rows.steps[row.step], 30);
  EXPECT_EQ(row.dp, 1);
  EXPECT_EQ(row.start, 1.5F);
  EXPECT_EQ(row.duration, 0.25F);
  EXPECT_EQ(rows.ranks[1][0], 1);
  EXPECT_EQ(rows.ranks[0][0], -1);
}

TEST_F(StragglerCsv, AByteOrderMarkIsNoPartOfTheHeader) {
  ASSERT_EQ(Message(Read("\xef\xbb\xbf" + std::string(kHeader) + DataParallelRows(1, 1))), "");
  EXPECT_EQ(sink_->TakeRows().size(), 4U);
}

TEST_F(StragglerCsv, TextsAndNumbersMayBeQuoted) {
  ASSERT_EQ(Message(Read("\"optype\",\"host\",\"step\",dp_rank,stage,rank,duration,start_ts,gmc,mb_id,mc,seq_id\n"
                         "\"gc\",\"node1, rack 2\",\"30\",1,0,1,\"0.25\",1.5,-1,0,-1,\"4\"\n")),
            "");
  const StragglerRows rows = sink_->TakeRows();
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows.pieces[0][0].type, OpType::kGc);
  EXPECT_EQ(rows.steps[0], 30);
  EXPECT_EQ(rows.pieces[0][0].duration, 0.25F);
  EXPECT_EQ(rows.pieces[0][0].sequence, 4);
  EXPECT_THAT(ErrorOf("0,0,0,10,\"gc,0,1,0,0,0,0\n"), HasSubstr("trace.csv:3:"));
  EXPECT_THAT(ErrorOf("0,0,0,\"10\"1,gc,0,1,0,0,0,0\n"), HasSubstr("trace.csv:3: step is \"10\""));
}

TEST_F(StragglerCsv, WholeNumbersMayHaveADecimalPoint) {
  ASSERT_EQ(ErrorOf("0.0,0,0,10.00,gc,0,1,2.0,-1.0,-1.0,-1.\n"), "");
  EXPECT_EQ(sink_->TakeRows().pieces[0][1].sequence, 2);
  EXPECT_THAT(ErrorOf("0,0,0,10,gc,0,1,2.5,-1,-1,-1\n"),
              HasSubstr("trace.csv:3: seq_id is \"2.5\", expected a whole number"));
}

TEST_F(StragglerCsv, WhatMakesAJobOfUnknownOpTypesIsNamed) {
  const std::string path = WriteTrace(kHeader + std::string("0,0,0,10,Forward,0,1,0,0,0,0\n0,0,0,10,gc,1,1,0,0,0,0\n"));
  EXPECT_THAT(Message(ReadStragglerJob(path, DataParallelMeta(1), {}).status()),
              HasSubstr("trace.csv: stage 0 has no compute; 1 rows are left out, of unknown op type \"Forward\""));
}

TEST_F(StragglerCsv, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_THAT(Message(Read("dp_rank,stage\n")),
              HasSubstr("trace.csv:1: the header has no column rank; expected dp_rank,stage,rank,step"));
  EXPECT_THAT(Message(Read("")), HasSubstr("trace.csv is empty"));
  EXPECT_THAT(ErrorOf("0,0,0,10,gc,0,1\n"), HasSubstr("trace.csv:3: 7 fields, expected 11"));
  EXPECT_THAT(ErrorOf("0,0,0,ten,gc,0,1,0,0,0,0\n"), HasSubstr("trace.csv:3: step is \"ten\", expected a number"));
  EXPECT_THAT(ErrorOf("0,0,0,10,gc,0,1s,0,0,0,0\n"), HasSubstr("trace.csv:3: duration is \"1s\""));
  EXPECT_THAT(ErrorOf("2,0,0,10,gc,0,1,0,0,0,0\n"), HasSubstr("trace.csv:3: dp_rank is 2, expected 0 to 1"));
  EXPECT_THAT(ErrorOf("0,1,0,10,gc,0,1,0,0,0,0\n"), HasSubstr("trace.csv:3: stage is 1, expected 0 to 0"));
  EXPECT_THAT(ErrorOf("0,0,9,10,gc,0,1,0,0,0,0\n"), HasSubstr("trace.csv:3: rank is 9, expected 0 to 1"));
  EXPECT_THAT(ErrorOf("0,0,0,10,gc,0,1,-1,0,0,0\n"), HasSubstr("trace.csv:3: seq_id is -1"));
  EXPECT_THAT(ErrorOf("0,0,0,10,gc,1.7e9,1,0,0,0,0\n"),
              HasSubstr("trace.csv:3: start_ts 1.7e+09: expected seconds since the first op of the same step"));
  EXPECT_THAT(ErrorOf("0,0,0,10,gc,0,1e30,0,0,0,0\n"),
              HasSubstr("trace.csv:3: duration 1e+30: expected seconds, at most 10000"));
  EXPECT_THAT(Message(Read("dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc,duration\n")),
              HasSubstr("trace.csv:1: the header has the column duration twice"));
  EXPECT_THAT(ErrorOf("0,0,0,10,forward-compute,0,1,1,0,-1,0\n"), HasSubstr("trace.csv:3: mb_id is -1, expected 0 to"));
  EXPECT_THAT(ErrorOf("0,0,0,10,forward-send-backward-recv,0,1,0,0,0,0\n"),
              HasSubstr("a fused send and receive can't be taken apart"));
}

TEST_F(StragglerCsv, ARowThatIsThereTwiceIsNamedWithItsPlace) {
  const std::string path = WriteTrace(kHeader + DataParallelRows(2, 1) + DataParallelRows(2, 1));
  EXPECT_THAT(Message(ReadStragglerJob(path, meta_, {}, 1).status()),
              HasSubstr("trace.csv:10: forward-compute 0 of stage 0 is there twice in step 10, data-parallel rank 0"));
}

TEST_F(StragglerCsv, WhatIsLeftOutOrMendedIsCounted) {
  ASSERT_EQ(ErrorOf("0,0,0,10,data-load,0,1,0,0,0,0\n0,0,0,10,data-load,0,1,1,0,0,0\n0,0,0,10,gc,nan,1,0,0,0,0\n"
                    "0,0,0,10,gc,0,inf,0,0,0,0\n0,0,1,10,gc,0,-1,0,0,0,0\n"),
            "");
  std::string counters;
  for (const Counter& counter : sink_->Counters()) counters += fmt::format("{}={} ", counter.name, counter.count);
  EXPECT_EQ(counters,
            "unknown_optype data-load=2 rows_without_time=2 negative_durations=1 workers_of_several_ranks=1 ");
  const StragglerRows rows = sink_->TakeRows();
  EXPECT_EQ(rows.ranks[0][0], 0);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows.pieces[0][1].duration, 0);
}

TEST_F(StragglerCsv, OnlyWantedStepsAreRead) {
  ASSERT_TRUE(Read(kHeader + DataParallelRows(2, 5), {{20, 30}, {50, 50}}).ok());
  EXPECT_THAT(sink_->TakeRows().steps, testing::ElementsAre(20, 30, 50));
}

}  // namespace
}  // namespace lockstep::trace
