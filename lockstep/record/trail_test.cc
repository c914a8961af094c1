#include "lockstep/record/trail.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_limit.h"

namespace {

ls_record Op(uint64_t bytes) {
  ls_record record{};
  record.kind = LS_RECORD_OP;
  record.body.op.bytes = bytes;
  // All words differ with `bytes`, so that a mixture of two records would show.
  record.time_ns = static_cast<int64_t>(bytes * 3);
  record.body.op.number = static_cast<uint32_t>(bytes * 5);
  record.body.op.duration = static_cast<uint32_t>(bytes * 7);
  return record;
}
bool IsWhole(const ls_record& record) {
  const uint64_t bytes = record.body.op.bytes;
  return record.kind == LS_RECORD_OP && record.time_ns == static_cast<int64_t>(bytes * 3) &&
         record.body.op.number == static_cast<uint32_t>(bytes * 5) &&
         record.body.op.duration == static_cast<uint32_t>(bytes * 7);
}

class TrailTest : public testing::Test {
 protected:
  ~TrailTest() override {
    if (trail_ != nullptr) munmap(trail_, ls_trail_bytes(trail_->capacity));
  }
  std::string path() const { return folder_ / "one.trail"; }
  ls_trail* Make(uint32_t capacity) {
    ls_origin origin{};
    origin.rank = 3;
    trail_ = ls_trail_create(path().c_str(), &origin, capacity);
    return trail_;
  }
  std::vector<ls_record> UnderWay() const {
    std::vector<ls_record> records(LS_TRAIL_PLACES);
    records.resize(ls_trail_under_way(trail_, records.data()));
    return records;
  }

  const lockstep::TestFolder folder_;
  ls_trail* trail_ = nullptr;
};

TEST_F(TrailTest, KeepsTheNewestAndCountsTheRest) {
  ls_trail* trail = Make(4);
  ASSERT_NE(trail, nullptr);
  EXPECT_EQ(trail->origin.rank, 3u);
  for (uint64_t i = 1; i <= 6; ++i) {
    const ls_record record = Op(i);
    ls_trail_push(trail, &record);
  }
  std::array<ls_record, 8> records;
  uint64_t at = 0, missed = 0;
  ASSERT_EQ(ls_trail_read(trail, &at, &missed, records.data(), records.size()), 4u);
  EXPECT_EQ(missed, 2u);
  EXPECT_EQ(records[0].body.op.bytes, 3u);
  EXPECT_EQ(records[3].body.op.bytes, 6u);
  EXPECT_EQ(ls_trail_read(trail, &at, &missed, records.data(), records.size()), 0u);
}

TEST_F(TrailTest, AHandleIsValidOnce) {
  ls_trail* trail = Make(4);
  const ls_record first = Op(1), second = Op(2), third = Op(3);
  const ls_handle one = ls_trail_open(trail, &first);
  ASSERT_NE(one, 0u);
  EXPECT_TRUE(ls_trail_set(trail, one, &second));
  ASSERT_EQ(UnderWay().size(), 1u);
  EXPECT_EQ(UnderWay()[0].body.op.bytes, 2u);
  EXPECT_TRUE(ls_trail_close(trail, one));
  EXPECT_FALSE(ls_trail_close(trail, one));
  EXPECT_TRUE(UnderWay().empty());

  const ls_handle again = ls_trail_open(trail, &third);  // the same place, another generation
  ls_record read;
  for (const ls_handle wrong : {one, ls_handle{0}, ls_handle{77}, ~ls_handle{0}, again + (ls_handle{1} << 32)}) {
    EXPECT_FALSE(ls_trail_set(trail, wrong, &first));
    EXPECT_FALSE(ls_trail_get(trail, wrong, &read));
    EXPECT_FALSE(ls_trail_close(trail, wrong));
  }
  ASSERT_TRUE(ls_trail_get(trail, again, &read));
  EXPECT_EQ(read.body.op.bytes, 3u);
}

TEST_F(TrailTest, MoreThanThereArePlacesForIsCounted) {
  ls_trail* trail = Make(4);
  const ls_record record = Op(1);
  std::vector<ls_handle> handles;
  handles.reserve(LS_TRAIL_PLACES);
  for (uint32_t i = 0; i < LS_TRAIL_PLACES; ++i) handles.push_back(ls_trail_open(trail, &record));
  EXPECT_EQ(UnderWay().size(), LS_TRAIL_PLACES);
  EXPECT_EQ(ls_trail_open(trail, &record), 0u);
  EXPECT_EQ(trail->no_place, 1u);
  EXPECT_TRUE(ls_trail_close(trail, handles[200]));
  EXPECT_NE(ls_trail_open(trail, &record), 0u);
}

TEST_F(TrailTest, ACommunicatorAtAnotherOnesAddressIsAnother) {
  ls_trail* trail = Make(4);
  EXPECT_EQ(ls_trail_find_communicator(trail, 0x1000), -1);
  EXPECT_EQ(ls_trail_add_communicator(trail, 0x1000), 0);
  EXPECT_EQ(ls_trail_add_communicator(trail, 0x2000), 1);
  EXPECT_EQ(ls_trail_find_communicator(trail, 0x1000), 0);
  EXPECT_EQ(ls_trail_add_communicator(trail, 0x1000), 2);
  EXPECT_EQ(ls_trail_find_communicator(trail, 0x1000), 2);
  for (uint32_t i = 3; i < LS_TRAIL_COMMUNICATORS; ++i) ls_trail_add_communicator(trail, 0x3000 + i);
  EXPECT_EQ(ls_trail_add_communicator(trail, 0x9999), -1);
}

// Writers and a reader at once: whatever is read was written so, in order of each writer, and what is missing is
// counted.
TEST_F(TrailTest, ReadersNeverSeeHalfARecord) {
  constexpr uint64_t kEach = 20'000, kWriters = 3;
  ls_trail* trail = Make(64);
  std::atomic<uint64_t> running{kWriters};
  std::vector<std::thread> writers;
  writers.reserve(kWriters);
  for (uint64_t writer = 0; writer < kWriters; ++writer)
    writers.emplace_back([&, writer] {
      for (uint64_t i = 0; i < kEach; ++i) {
        const ls_record record = Op(i * kWriters + writer), other = Op(i * kWriters + writer + 1);
        const ls_handle handle = ls_trail_open(trail, &record);
        ls_trail_set(trail, handle, &other);
        ls_trail_close(trail, handle);
        ls_trail_push(trail, &record);
      }
      --running;
    });
  uint64_t at = 0, missed = 0, read = 0;
  std::array<int64_t, kWriters> last{-1, -1, -1};
  std::array<ls_record, 32> records;
  std::vector<ls_record> under_way(LS_TRAIL_PLACES);
  const auto look = [&] {
    const size_t now = ls_trail_under_way(trail, under_way.data());
    for (size_t i = 0; i < now; ++i) EXPECT_TRUE(IsWhole(under_way[i]));
    while (const size_t count = ls_trail_read(trail, &at, &missed, records.data(), records.size())) {
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(IsWhole(records[i]));
        const uint64_t bytes = records[i].body.op.bytes;
        EXPECT_GT(static_cast<int64_t>(bytes / kWriters), last.at(bytes % kWriters));
        last.at(bytes % kWriters) = static_cast<int64_t>(bytes / kWriters);
      }
      read += count;
    }
  };
  while (running > 0) look();
  for (std::thread& writer : writers) writer.join();
  look();
  EXPECT_EQ(read + missed, kEach * kWriters);
  EXPECT_GT(read, 0u);
  EXPECT_TRUE(UnderWay().empty());
}

// A process killed at any instruction leaves what it had told.
TEST_F(TrailTest, OutlivesItsWriter) {
  ls_trail* trail = Make(1024);
  std::array<int, 2> pipe_ends;
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    for (uint64_t i = 1;; ++i) {
      const ls_record record = Op(i);
      const ls_handle handle = ls_trail_open(trail, &record);
      ls_trail_push(trail, &record);
      if (i == 5000 && write(pipe_ends[1], "x", 1) != 1) _exit(1);
      ls_trail_close(trail, handle);
    }
  }
  char byte;
  ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);

  const int fd = open(path().c_str(), O_RDONLY);
  struct stat info;
  fstat(fd, &info);
  void* memory = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  const ls_trail* left = ls_trail_attach(memory, static_cast<size_t>(info.st_size));
  ASSERT_NE(left, nullptr);
  std::vector<ls_record> records(2048);
  uint64_t at = 0, missed = 0;
  const size_t count = ls_trail_read(left, &at, &missed, records.data(), records.size());
  EXPECT_GE(count + 1, 1024u);  // the one in the middle of which it died, at most
  EXPECT_GE(missed, 5000u - 1024u);
  for (size_t i = 0; i < count; ++i) EXPECT_TRUE(IsWhole(records[i]));
  EXPECT_LE(UnderWay().size(), 1u);
  munmap(memory, static_cast<size_t>(info.st_size));
  close(fd);
}

TEST_F(TrailTest, ALimitOnFilesIsAnErrorAndNoSignal) {
  const lockstep::TestLimit small(RLIMIT_FSIZE, 4096);
  const ls_origin origin{};
  errno = 0;
  EXPECT_EQ(ls_trail_create(path().c_str(), &origin, 16), nullptr);
  EXPECT_EQ(errno, EFBIG);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(TrailTest, WhatIsNoTrailIsRefused) {
  ls_trail* trail = Make(16);
  const size_t bytes = ls_trail_bytes(16);
  EXPECT_EQ(ls_trail_attach(trail, bytes - 1), nullptr);
  EXPECT_EQ(ls_trail_attach(trail, 100), nullptr);
  trail->capacity = 15;
  EXPECT_EQ(ls_trail_attach(trail, bytes), nullptr);
  trail->capacity = 16;
  trail->places = 1 << 20;
  EXPECT_EQ(ls_trail_attach(trail, bytes), nullptr);
  trail->places = LS_TRAIL_PLACES;
  trail->magic ^= 1;
  EXPECT_EQ(ls_trail_attach(trail, bytes), nullptr);
  EXPECT_EQ(ls_trail_create(path().c_str(), &trail->origin, 16), nullptr);  // there already
  EXPECT_EQ(ls_trail_create("/no/such/folder/one.trail", &trail->origin, 16), nullptr);
}

}  // namespace
