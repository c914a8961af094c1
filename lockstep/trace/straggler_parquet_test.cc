#include "lockstep/trace/straggler_parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/duckdb.h"
#include "lockstep/trace/straggler_file.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

using testing::HasSubstr;

class StragglerParquet : public testing::Test {
 protected:
  void SetUp() override {
    auto database = DuckDb::Open();
    if (!database.ok()) GTEST_SKIP() << Message(database.status());
    database_ = std::make_unique<DuckDb>(*std::move(database));
    csv_ = WriteTrace(kHeader + DataParallelRows(2, 3));
  }
  // The rows of the CSV file, through a SELECT, as Parquet; returns the path.
  std::string Convert(const std::string& columns) {
    const std::string path = TempPath("trace.parquet");
    const absl::Status made = Do(fmt::format("COPY (SELECT {} FROM read_csv({})) TO {} (FORMAT parquet)", columns,
                                             SqlText(csv_), SqlText(path)));
    EXPECT_TRUE(made.ok()) << Message(made);
    return path;
  }
  absl::Status Do(const std::string& sql) const {
    return database_->Query(sql, [](const DuckDb::Chunk&) { return absl::OkStatus(); });
  }
  std::string ErrorOf(const std::string& columns) {
    StragglerSink sink(meta_, {});
    return Message(ReadStragglerParquet(Convert(columns), sink));
  }

  const StragglerMeta meta_ = DataParallelMeta(2);
  std::string csv_;
  std::unique_ptr<DuckDb> database_;
};

TEST_F(StragglerParquet, GivesTheJobThatTheSameRowsGiveAsCsv) {
  ASSERT_TRUE(Do("CREATE TYPE kinds AS ENUM (SELECT DISTINCT optype FROM read_csv(" + SqlText(csv_) + "))").ok());
  const std::string path = Convert("* REPLACE (CAST(optype AS kinds) AS optype, CAST(step AS USMALLINT) AS step)");
  const auto job = ReadStragglerJob(path, meta_, {});
  const auto expected = ReadStragglerJob(csv_, meta_, {});
  ASSERT_TRUE(job.ok()) << Message(job.status());
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(job->steps, expected->steps);
  EXPECT_EQ(job->transfers, expected->transfers);
  EXPECT_EQ(job->delays, expected->delays);
  EXPECT_EQ(job->ranks, expected->ranks);
}

// As Spark and others lay data sets out.
TEST_F(StragglerParquet, DirectoriesAreNoColumns) {
  for (const char* directory : {"rank=1", "step=7", "stage=prod"}) {
    std::filesystem::create_directories(TempPath(directory));
    const std::string path = TempPath(directory) + "/trace.parquet";
    std::filesystem::copy_file(Convert("*"), path);
    const auto job = ReadStragglerJob(path, meta_, {});
    ASSERT_TRUE(job.ok()) << Message(job.status());
    EXPECT_EQ(job->ranks, (std::vector<std::vector<int32_t>>{{0}, {1}}));
    EXPECT_EQ(job->steps, (std::vector<int64_t>{10, 20, 30}));
  }
}

// As large that it is read in parts, each on a thread.
TEST_F(StragglerParquet, IsTheSameOnAnyNumberOfThreads) {
  const std::string path = TempPath("large.parquet");
  const auto write = [&](const std::string& columns) {
    return Do(fmt::format("COPY (SELECT {} FROM range(100000) r, read_csv({}) t) TO {} (FORMAT parquet)", columns,
                          SqlText(csv_), SqlText(path)));
  };
  ASSERT_TRUE(write("t.* REPLACE (t.step + 100 * r.range AS step)").ok());
  const auto one = ReadStragglerJob(path, meta_, {}, 1), two = ReadStragglerJob(path, meta_, {}, 2);
  ASSERT_TRUE(one.ok()) << Message(one.status());
  ASSERT_TRUE(two.ok()) << Message(two.status());
  ASSERT_EQ(one->steps.size(), 300000);
  EXPECT_TRUE(one->steps == two->steps);
  EXPECT_TRUE(one->step_times == two->step_times);
  EXPECT_TRUE(one->transfers == two->transfers);
  EXPECT_TRUE(one->delays == two->delays);
  EXPECT_EQ(one->ranks, two->ranks);

  ASSERT_TRUE(write("t.* REPLACE (nullif(t.step + 100 * r.range, 9999930) AS step)").ok());
  const std::string error = Message(ReadStragglerJob(path, meta_, {}, 1).status());
  EXPECT_THAT(error, HasSubstr(": step is null"));
  EXPECT_EQ(Message(ReadStragglerJob(path, meta_, {}, 2).status()), error);
}

TEST_F(StragglerParquet, WhatIsWrongIsNamed) {
  EXPECT_THAT(ErrorOf("* EXCLUDE (mc)"), HasSubstr("trace.parquet: no column mc; expected dp_rank,stage"));
  EXPECT_THAT(ErrorOf("* REPLACE (CAST(step AS DOUBLE) AS step)"),
              HasSubstr("trace.parquet: column step has type DOUBLE, expected an integer"));
  EXPECT_THAT(ErrorOf("* REPLACE (7 AS optype)"), HasSubstr("column optype has type INTEGER, expected text"));
  EXPECT_THAT(ErrorOf("* REPLACE (nullif(seq_id, 0) AS seq_id)"), HasSubstr("trace.parquet: row 1: seq_id is null"));
  EXPECT_THAT(ErrorOf("* REPLACE (dp_rank + 1 AS dp_rank)"), HasSubstr("row 5: dp_rank is 2, expected 0 to 1"));
  EXPECT_THAT(Message(ReadStragglerJob(Convert("* REPLACE (10 AS step)"), meta_, {}).status()),
              HasSubstr("row 9: forward-compute 0 of stage 0 is there twice in step 10"));
}

TEST_F(StragglerParquet, AnUnknownOpTypeIsCountedByItsName) {
  const auto job = ReadStragglerJob(
      Convert("* REPLACE (CASE optype WHEN 'optimizer' THEN 'strange' ELSE optype END AS optype)"), meta_, {});
  ASSERT_TRUE(job.ok()) << Message(job.status());
  ASSERT_EQ(job->counters.size(), 1);
  EXPECT_EQ(job->counters[0].name, "unknown_optype strange");
  EXPECT_EQ(job->counters[0].count, 6);
  EXPECT_THAT(ErrorOf("* REPLACE (nullif(optype, 'optimizer') AS optype)"), HasSubstr(": optype is null"));
}

TEST_F(StragglerParquet, ATruncatedFileIsRefused) {
  const std::string path = Convert("*");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const auto job = ReadStragglerJob(path, meta_, {});
  ASSERT_FALSE(job.ok());
  EXPECT_THAT(Message(job.status()), HasSubstr("trace.parquet: "));
}

}  // namespace
}  // namespace lockstep::trace
