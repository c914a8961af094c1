#include "lockstep/trace/record_file.h"

#include <gmock/gmock.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/test_folder.h"
#include "lockstep/trace/trail_recorder.h"
#include "lockstep/trace/trails.h"

namespace lockstep::trace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

ls_record Op(uint32_t number, int64_t at) {
  ls_record record{};
  record.kind = LS_RECORD_OP;
  record.time_ns = at;
  record.body.op.number = number;
  record.body.op.tag = LS_NO_TAG;
  record.body.op.function = LS_ALL_REDUCE;
  record.body.op.state = LS_OP_COMPLETED;
  return record;
}

TrailSnapshot Snapshot(uint32_t rank) {
  TrailSnapshot snapshot;
  snapshot.origin.rank = rank;
  snapshot.origin.world = 2;
  snapshot.origin.pid = 100 + rank;
  strcpy(snapshot.origin.host, "node1");
  strcpy(snapshot.origin.source, "nccl");
  snapshot.wall_minus_boot_ns = 5;
  snapshot.taken_ns = 1000;
  snapshot.alive = true;
  snapshot.no_peer = 3;
  snapshot.no_op = 4;
  snapshot.libraries = LS_LIBRARY_OF_DEVICES;
  ls_communicator world{};
  world.id = 9;
  world.rank = rank;
  world.size = 2;
  strcpy(world.name, "world");
  snapshot.communicators = {world};
  return snapshot;
}

class RecordFileTest : public testing::Test {
 protected:
  void Write(const TrailSnapshot& snapshot) {
    auto writer = RecordFileWriter::Open(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(writer->Write(snapshot).ok());
  }
  const TestFolder folder_;
  const std::string path_ = folder_ / "snapshots.records";
  std::vector<Counter> counters_;
};

TEST_F(RecordFileTest, WhatWasWrittenIsRead) {
  TrailSnapshot one = Snapshot(0);
  one.ended = {Op(1, 10), Op(2, 20)};
  ls_record open = Op(3, 30);
  open.body.op.state = LS_OP_STARTED;
  one.under_way = {open};
  one.stopped = true;
  Write(one);
  Write(Snapshot(1));
  const auto read = ReadRecordFile(path_, counters_);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(*read, SizeIs(2));
  const TrailSnapshot& back = read->front();
  EXPECT_EQ(memcmp(&back.origin, &one.origin, sizeof one.origin), 0);
  EXPECT_EQ(back.wall_minus_boot_ns, 5);
  EXPECT_EQ(back.taken_ns, 1000);
  EXPECT_TRUE(back.alive && back.stopped);
  EXPECT_TRUE(read->back().alive && !read->back().stopped);
  EXPECT_EQ(back.no_peer, 3u);
  EXPECT_EQ(back.no_op, 4u);
  EXPECT_EQ(back.libraries, LS_LIBRARY_OF_DEVICES);
  ASSERT_THAT(back.communicators, SizeIs(1));
  EXPECT_STREQ(back.communicators[0].name, "world");
  ASSERT_THAT(back.ended, SizeIs(2));
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bytes are what a file keeps
  EXPECT_EQ(memcmp(&back.ended[1], &one.ended[1], sizeof open), 0);
  ASSERT_THAT(back.under_way, SizeIs(1));
  EXPECT_EQ(back.under_way[0].body.op.number, 3u);
  EXPECT_THAT(counters_, IsEmpty());
}

TEST_F(RecordFileTest, LaterSnapshotsOfATrailAddWhatHasEndedSince) {
  TrailSnapshot first = Snapshot(0), second = first;
  first.ended = {Op(1, 10)};
  first.under_way = {Op(2, 15)};
  first.missed = 4;
  second.ended = {Op(2, 20)};
  second.taken_ns = 2000;
  second.missed = 1;
  Write(first);
  Write(second);
  const auto read = ReadRecordFile(path_, counters_);
  ASSERT_TRUE(read.ok());
  ASSERT_THAT(*read, SizeIs(1));
  EXPECT_THAT(read->front().ended, SizeIs(2));
  EXPECT_THAT(read->front().under_way, IsEmpty());
  EXPECT_EQ(read->front().missed, 5u);
  EXPECT_EQ(read->front().taken_ns, 2000);
}

TEST_F(RecordFileTest, WhatTwoRecordersKeptCountsOnce) {
  TrailSnapshot one = Snapshot(0);
  one.ended = {Op(1, 10), Op(2, 20)};
  Write(one);
  Write(one);
  const auto read = ReadRecordFile(path_, counters_);
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(read->front().ended, SizeIs(2));
}

TEST_F(RecordFileTest, AProcessThatHasTheSamePidLaterIsAnother) {
  TrailSnapshot before = Snapshot(0), after = Snapshot(0);
  before.ended = {Op(1, 10)};
  after.communicators[0].created_ns = 5000;
  after.ended = {Op(1, 6000)};
  Write(before);
  Write(after);
  const auto read = ReadRecordFile(path_, counters_);
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(*read, SizeIs(2));
}

TEST_F(RecordFileTest, ATornEndIsCountedAndTheRestHolds) {
  TrailSnapshot one = Snapshot(0);
  one.ended = {Op(1, 10), Op(2, 20)};
  Write(one);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 70);
  const auto read = ReadRecordFile(path_, counters_);
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(read->front().ended, IsEmpty());
  ASSERT_THAT(counters_, SizeIs(1));
  EXPECT_EQ(counters_[0].name, "torn_bytes");
}

TEST_F(RecordFileTest, ASnapshotThatLiesIsLeftOutWithItsRecords) {
  TrailSnapshot one = Snapshot(0);
  one.ended = {Op(1, 10)};
  Write(one);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(64 + offsetof(ls_record, body.snapshot.communicators));
    const uint32_t many = 500;
    file.write(reinterpret_cast<const char*>(&many), sizeof many);
  }
  const auto read = ReadRecordFile(path_, counters_);
  EXPECT_THAT(Message(read.status()), HasSubstr("no rank's trail"));
  ASSERT_THAT(counters_, SizeIs(1));
  EXPECT_EQ(counters_[0].count, 2u);
}

TEST_F(RecordFileTest, OtherFilesAreRefusedByName) {
  std::ofstream(path_) << "a text that is somebody's and is longer than a header of sixty-four bytes";
  EXPECT_THAT(Message(ReadRecordFile(path_, counters_).status()), HasSubstr("LSKREC01"));
  EXPECT_THAT(Message(RecordFileWriter::Open(path_).status()), HasSubstr("name another one"));
  EXPECT_THAT(Message(ReadRecordFile(path_ + ".none", counters_).status()), HasSubstr("No such file"));
}

TEST_F(RecordFileTest, DiagnoseReadsItBesideTrails) {
  Write(Snapshot(0));
  Write(Snapshot(1));
  EXPECT_TRUE(HasTrails(path_));
  const auto log = ReadTrails({path_});
  ASSERT_TRUE(log.ok());
  EXPECT_THAT(log->reported, testing::ElementsAre(0, 1));
}

TEST(TrailRecorder, TellsAgainThatNothingHasChanged) {
  TrailSnapshot snapshot;
  snapshot.taken_ns = 100'000'000'000;
  const auto is_told_after = [&](double seconds) {
    return IsToBeToldAgain(snapshot, Nanos{snapshot.taken_ns} - ToNanos(Seconds{seconds}));
  };
  EXPECT_FALSE(is_told_after(99)) << "its process is gone";
  snapshot.alive = true;
  EXPECT_FALSE(is_told_after(29));
  EXPECT_TRUE(is_told_after(30)) << "since when it is quiet is not known else";
  snapshot.under_way.emplace_back();
  EXPECT_FALSE(is_told_after(4));
  EXPECT_TRUE(is_told_after(5));
}

}  // namespace
}  // namespace lockstep::trace
