#include "lockstep/agent/record_log.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lockstep/base/test_folder.h"
#include "lockstep/record/file.h"

namespace lockstep::agent {
namespace {

class RecordLogTest : public testing::Test {
 protected:
  RecordLogTest() {
    const size_t bytes = ls_ring_bytes(8);
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0);
    ring_ = static_cast<ls_ring*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    EXPECT_TRUE(ls_ring_format(ring_, bytes));
  }
  ~RecordLogTest() override { munmap(ring_, ls_ring_bytes(8)); }
  void Push(int64_t step) {
    ls_record record{};
    record.kind = LS_RECORD_STEP;
    record.body.step.step = step;
    ls_ring_push(ring_, &record);
  }

  const Fd fd_{memfd_create("ring", MFD_CLOEXEC)};
  const TestFolder folder_;
  const std::string path_ = folder_ / "records";
  ls_ring* ring_ = nullptr;
};

TEST_F(RecordLogTest, WhatWasPushedIsInTheFileInOrder) {
  {
    RecordLog log(path_, Bytes{1 << 20});
    log.Attach(0, fd_);
    for (int64_t step = 0; step < 20; ++step) {
      Push(step);
      if (step % 5 == 4) log.Drain();
    }
    EXPECT_EQ(log.kept(), 20u);
    EXPECT_EQ(log.dropped(), 0u);
  }
  ls_record_reader reader;
  ASSERT_EQ(ls_record_reader_open(&reader, path_.c_str()), LS_FILE_OK);
  for (int64_t step = 0; step < 20; ++step) EXPECT_EQ(ls_record_reader_next(&reader)->body.step.step, step);
  EXPECT_EQ(ls_record_reader_next(&reader), nullptr);
  ls_record_reader_close(&reader);
}

TEST_F(RecordLogTest, CountsWhatFullRingsCost) {
  RecordLog log(path_, Bytes{1 << 20});
  log.Attach(0, fd_);
  for (int64_t step = 0; step < 10; ++step) Push(step);  // the ring holds 8
  log.Drain();
  EXPECT_EQ(log.dropped(), 2u);
  EXPECT_EQ(log.not_kept(), 0u);
  EXPECT_EQ(log.kept(), 8u);
}

TEST_F(RecordLogTest, AWorkerThatWritesOverItsRingIsHeardNoMore) {
  RecordLog log(path_, Bytes{1 << 20});
  log.Attach(0, fd_);
  Push(1);
  log.Drain();
  ring_->capacity = 0x80000000;
  ring_->head = 1ull << 30;
  ring_->tail = 1ull << 29;
  log.Drain();
  EXPECT_EQ(log.kept(), 1u);
}

TEST_F(RecordLogTest, TheNewestAreKeptWithinTheLimit) {
  {
    RecordLog log(path_, Bytes{20ull * LS_CELL_BYTES});  // a header and nine records in each of two files
    log.Attach(0, fd_);
    for (int64_t step = 0; step < 100; ++step) {
      Push(step);
      log.Drain();
    }
    EXPECT_EQ(log.dropped(), 0u);
  }
  std::vector<int64_t> steps;
  for (const std::string& path : {path_ + kOlderRecords, path_}) {
    ls_record_reader reader;
    ASSERT_EQ(ls_record_reader_open(&reader, path.c_str()), LS_FILE_OK) << path;
    while (const ls_record* record = ls_record_reader_next(&reader)) steps.push_back(record->body.step.step);
    ls_record_reader_close(&reader);
  }
  unlink((path_ + kOlderRecords).c_str());
  ASSERT_GE(steps.size(), 9u);
  EXPECT_LE(steps.size(), 18u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(100 - steps.size() + i));
}

TEST_F(RecordLogTest, AnUnwritablePlaceOnlyCounts) {
  RecordLog log("/no/such/folder/records", Bytes{1 << 20});
  log.Attach(0, fd_);
  Push(1);
  log.Drain();
  EXPECT_EQ(log.kept(), 0u);
  EXPECT_EQ(log.not_kept(), 1u);
  EXPECT_EQ(log.dropped(), 0u) << "the ring had room";
}

}  // namespace
}  // namespace lockstep::agent
