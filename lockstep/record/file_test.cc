#include "lockstep/record/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_limit.h"

namespace {

ls_record Cell(uint8_t kind, int64_t step, uint16_t more = 0) {
  ls_record record{};
  record.kind = kind;
  record.more = more;
  record.body.step.step = step;
  return record;
}

class RecordFile : public testing::Test {
 protected:
  void Append(const std::vector<ls_record>& cells, size_t extra_bytes = 0) {
    const int fd = ls_record_file_create(path_.c_str());
    ASSERT_GE(fd, 0);
    ASSERT_TRUE(ls_record_file_append(fd, cells.data(), cells.size()));
    ASSERT_EQ(write(fd, path_.data(), extra_bytes), static_cast<ssize_t>(extra_bytes));
    close(fd);
  }
  std::vector<int64_t> Steps(ls_record_reader* reader) {
    std::vector<int64_t> steps;
    EXPECT_EQ(ls_record_reader_open(reader, path_.c_str()), LS_FILE_OK);
    while (const ls_record* record = ls_record_reader_next(reader)) steps.push_back(record->body.step.step);
    ls_record_reader_close(reader);
    return steps;
  }
  const lockstep::TestFolder folder_;
  const std::string path_ = folder_ / "records";
};

TEST_F(RecordFile, KeepsOrderAcrossAppendsAndBuffers) {
  std::vector<ls_record> cells;
  cells.reserve(3000);
  for (int64_t i = 0; i < 3000; ++i) cells.push_back(Cell(LS_RECORD_STEP, i));
  Append(cells);
  Append({Cell(LS_RECORD_STEP, 3000)});
  ls_record_reader reader;
  const std::vector<int64_t> steps = Steps(&reader);
  ASSERT_EQ(steps.size(), 3001u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(i));
}

TEST_F(RecordFile, SkipsAndCountsUnknownKindsWithTheirCells) {
  Append({Cell(LS_RECORD_STEP, 1), Cell(99, 2, 2), Cell(99, 3), Cell(LS_RECORD_STEP, 4), Cell(LS_RECORD_STEP, 5)});
  ls_record_reader reader;
  EXPECT_EQ(Steps(&reader), (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(reader.unknown, 1u);
}

TEST_F(RecordFile, LeavesOutATornEndAndAppendsAfterIt) {
  Append({Cell(LS_RECORD_STEP, 1)}, 17);
  ls_record_reader reader;
  EXPECT_EQ(Steps(&reader), (std::vector<int64_t>{1}));
  EXPECT_EQ(reader.torn_bytes, 17u);
  Append({Cell(LS_RECORD_STEP, 2), Cell(LS_RECORD_DEFINITION, 3, 4)});  // the definition lacks its cells
  EXPECT_EQ(Steps(&reader), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(reader.torn_bytes, 64u);
  Append({Cell(LS_RECORD_STEP, 4), Cell(LS_RECORD_STEP, 5), Cell(LS_RECORD_STEP, 6)});
  EXPECT_EQ(Steps(&reader), (std::vector<int64_t>{1, 2, 4, 5, 6}));
  EXPECT_EQ(reader.torn_bytes, 0u);
}

TEST_F(RecordFile, WhatDoesNotFitLeavesNothingBehind) {
  Append({Cell(LS_RECORD_STEP, 1)});
  const int fd = ls_record_file_create(path_.c_str());
  const std::vector<ls_record> more = {Cell(LS_RECORD_DEFINITION, 2, 2), {}, {}};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  {
    const lockstep::TestLimit limit(RLIMIT_FSIZE, 2 * LS_CELL_BYTES + 100);  // in the second cell of three
    EXPECT_FALSE(ls_record_file_append(fd, more.data(), more.size()));
    EXPECT_EQ(errno, EFBIG);
  }
  signal(SIGXFSZ, handler);
  const ls_record next = Cell(LS_RECORD_STEP, 3);
  EXPECT_TRUE(ls_record_file_append(fd, &next, 1));
  close(fd);
  ls_record_reader reader;
  EXPECT_EQ(Steps(&reader), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(reader.torn_bytes, 0u);
}

TEST_F(RecordFile, SaysWhatIsNotAFileOfRecords) {
  ls_record_reader reader;
  EXPECT_EQ(ls_record_reader_open(&reader, path_.c_str()), LS_FILE_UNREADABLE);
  const int fd = open(path_.c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_EQ(write(fd, "text", 4), 4);
  close(fd);
  EXPECT_EQ(ls_record_reader_open(&reader, path_.c_str()), LS_FILE_NOT_RECORDS);
}

}  // namespace
