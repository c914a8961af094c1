#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/stage/infer.h"
#include "lockstep/stage/spill.h"
#include "lockstep/stage/stream_fixture.h"

namespace lockstep::stage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Stream, StepsComeInOrderAndThenTheEnd) {
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 4));
  ls_stage* reader = Attach();
  EXPECT_EQ(-LS_STAGE_TIMEOUT, Next(reader));
  for (const int64_t step : {0, 5, 6}) EXPECT_EQ(LS_STAGE_OK, Put(writer, step));
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(5, Next(reader));
  EXPECT_EQ(LS_STAGE_OK, ls_stage_close(writer, 0));
  EXPECT_EQ(6, Next(reader)) << "what was visible before the end";
  EXPECT_EQ(-LS_STAGE_END, Next(reader));
  ls_stage_detach(reader);
}

// Whichever of the two goes first.
TEST_F(Stream, AReaderThatLeavesReadsOnAndNothingIsLeft) {
  for (const bool writer_first : {true, false}) {
    ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 4));
    ls_stage* reader = Attach();
    EXPECT_EQ(LS_STAGE_OK, Put(writer, 3));
    ls_stage_step step;
    ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 1, &step));
    if (writer_first) ls_stage_close(writer, 0);
    EXPECT_EQ(LS_STAGE_OK, ls_stage_leave(reader));
    if (!writer_first) ls_stage_close(writer, 0);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/room"));
    EXPECT_EQ(3, step.step);
    ls_stage_step same;
    EXPECT_EQ(LS_STAGE_OK, ls_stage_get(reader, 3, &same));
    EXPECT_EQ(step.memory, same.memory);
    ls_stage_detach(reader);
  }
}

TEST_F(Stream, AStepIsVisibleWhenAllRanksHaveCommitted) {
  ls_stage *first = Open(Options(LS_STAGE_LOSSLESS, 4), 0, 2), *second = Open(Options(LS_STAGE_LOSSLESS, 4), 1, 2);
  ls_stage* reader = Attach();
  Put(first, 1);
  Put(first, 2);
  EXPECT_EQ(-LS_STAGE_TIMEOUT, Next(reader, 2));
  Begin(second, 1);
  EXPECT_EQ(-LS_STAGE_TIMEOUT, Next(reader, 2)) << "reserved is not committed";
  ls_stage_commit(second);
  EXPECT_EQ(1, Next(reader, 2));
  EXPECT_EQ(-LS_STAGE_TIMEOUT, Next(reader, 2));
  EXPECT_EQ(1, ls_stage_last_step(first));
  for (ls_stage* writer : {first, second}) ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, AStepThatARankLeavesOutIsNeverVisible) {
  ls_stage *first = Open(Options(LS_STAGE_LOSSLESS, 2), 0, 2), *second = Open(Options(LS_STAGE_LOSSLESS, 2), 1, 2);
  ls_stage* reader = Attach();
  Put(first, 1);
  Begin(second, 1);
  ls_stage_abandon(second);
  for (int64_t step = 2; step < 9; step += 2) {  // in each pair, the second rank does not even begin the odd one
    EXPECT_EQ(LS_STAGE_OK, Put(first, step));
    EXPECT_EQ(LS_STAGE_OK, Put(second, step));
    EXPECT_EQ(step, Next(reader, 2));
    EXPECT_EQ(LS_STAGE_OK, Put(first, step + 1));
  }
  EXPECT_EQ(4U, Facts(reader).incomplete);  // 1, 3, 5, 7; of 9 nothing is known yet
  for (ls_stage* writer : {first, second}) ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, LosslessWaitsForReadersWithinItsLimit) {
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 2));
  for (const int64_t step : {0, 1}) EXPECT_EQ(LS_STAGE_OK, Put(writer, step));
  EXPECT_EQ(LS_STAGE_TIMEOUT, Put(writer, 2, 0.001));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("no room for step 2 in 0.001 s"));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("a first reader"));
  ls_stage* reader = Attach();
  EXPECT_EQ(LS_STAGE_TIMEOUT, Put(writer, 2));
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 2));
  ls_stage_step held;
  ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 0, &held));
  EXPECT_EQ(LS_STAGE_TIMEOUT, Put(writer, 3)) << "step 1 was had, and is still held";
  ExpectWhole(held);
  ls_stage_release(reader, &held);
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 3));
  EXPECT_EQ(2, Next(reader));
  EXPECT_EQ(0U, Facts(reader).unread);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, LosslessLosesNothingUnderLoad) {
  constexpr int64_t kSteps = 20'000;
  const ls_stage_options how = Options(LS_STAGE_LOSSLESS, 3);
  ls_stage* writers[] = {Open(how, 0, 2), Open(how, 1, 2)};
  ls_stage* reader = Attach();
  std::vector<std::jthread> ranks;
  for (ls_stage* writer : writers) {
    ranks.emplace_back([writer] {
      for (int64_t step = 0; step < kSteps; ++step)
        ASSERT_EQ(LS_STAGE_OK, Put(writer, step, 60)) << ls_stage_last_error();
    });
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    ls_stage_step got;
    ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 60, &got)) << ls_stage_last_error();
    ASSERT_EQ(step, got.step);
    ExpectWhole(got, 2);
    ls_stage_release(reader, &got);
  }
  ranks.clear();
  EXPECT_EQ(0U, Facts(reader).unread + Facts(reader).incomplete + Facts(reader).skipped);
  for (ls_stage* writer : writers) ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, ShardsHaveEachStepOnce) {
  ls_stage_options how = Options(LS_STAGE_LOSSLESS, 4);
  how.readers = 2;
  ls_stage* writer = Open(how);
  ls_stage* even = Attach(0, 2);
  for (int64_t step = 10; step < 14; ++step) Put(writer, step);
  EXPECT_EQ(10, Next(even));
  EXPECT_EQ(12, Next(even));
  EXPECT_EQ(LS_STAGE_TIMEOUT, Put(writer, 14)) << "the other reader is still to come";
  ls_stage* odd = Attach(1, 2);
  EXPECT_EQ(11, Next(odd));
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 14));
  EXPECT_EQ(13, Next(odd));
  EXPECT_EQ(-LS_STAGE_TIMEOUT, Next(odd));
  EXPECT_EQ(14, Next(even));
  ls_stage_close(writer, 0);
  ls_stage_detach(even);
  ls_stage_detach(odd);
}

TEST_F(Stream, LatestKeepsTheLatest) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 3));
  ls_stage* reader = Attach();
  for (int64_t step = 0; step < 100; ++step) ASSERT_EQ(LS_STAGE_OK, Put(writer, step));
  EXPECT_THAT(Steps(reader), ElementsAre(97, 98, 99));
  EXPECT_EQ(97, Next(reader));
  EXPECT_EQ(97U, Facts(reader).skipped);
  ls_stage_step step;
  EXPECT_EQ(LS_STAGE_ABSENT, ls_stage_get(reader, 50, &step));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("no step 50"));
  ASSERT_EQ(LS_STAGE_OK, ls_stage_get(reader, 98, &step));
  for (int64_t next = 100; next < 110; ++next) ASSERT_EQ(LS_STAGE_OK, Put(writer, next));
  ExpectWhole(step);  // held, though no longer among the latest
  EXPECT_THAT(Steps(reader), ElementsAre(107, 108, 109));
  ls_stage_release(reader, &step);
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_release(reader, &step)) << "twice";
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, ReservoirHoldsWhatAlgorithmRSays) {
  ls_stage* writer = Open(Options(LS_STAGE_RESERVOIR, 5));
  ls_stage* reader = Attach();
  std::vector<int64_t> expected(5);
  for (int64_t step = 0; step < 500; ++step) {
    ASSERT_EQ(LS_STAGE_OK, Put(writer, step));
    const uint32_t place = ls_reservoir_place(1, static_cast<uint64_t>(step), 5);
    if (place != LS_NO_PLACE) expected[place] = step;
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(expected, Steps(reader));
  for (const int64_t step : expected) {
    ls_stage_step got;
    ASSERT_EQ(LS_STAGE_OK, ls_stage_get(reader, step, &got));
    ExpectWhole(got);
    ls_stage_release(reader, &got);
  }
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, SpillsEveryStep) {
  const std::string path = folder_ + "/all.spill";
  ls_stage_options how = Options(LS_STAGE_REPLAY, 1);
  how.spill = path.c_str();
  ls_stage* writer = Open(how);
  ls_stage* reader = Attach();
  for (int64_t step = 0; step < 10; ++step) ASSERT_EQ(LS_STAGE_OK, Put(writer, 3 * step)) << ls_stage_last_error();
  EXPECT_EQ(10U, Facts(reader).spilled);
  EXPECT_EQ(path, Facts(reader).spill);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
  EXPECT_EQ(LS_SPILL_PAGE + 10 * ls_spill_stride(64), std::filesystem::file_size(path));
  ls_stage* other = nullptr;
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &other));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("name another, or remove it"));
}

TEST_F(Stream, AFullDiskEndsTheSpillAndNotTheSimulation) {
  ls_stage_options how = Options(LS_STAGE_REPLAY, 2);
  const std::string path = folder_ + "/full.spill";
  how.spill = path.c_str();
  ls_stage* writer = Open(how);
  ls_stage* reader = Attach();
  close(writer->spill);
  writer->spill = open("/dev/full", O_RDWR);
  EXPECT_EQ(LS_STAGE_SPILL, Put(writer, 0));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("ends after 0 steps: No space left on device"));
  EXPECT_EQ(LS_STAGE_SPILL, Put(writer, 1));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("an earlier one could not be written"));
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(2U, Facts(reader).spill_failures);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

// ---- bad input ----

TEST_F(Stream, BadInput) {
  const ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  ls_stage* stream = nullptr;
  const auto expect = [&](const char* text, int result) {
    EXPECT_NE(LS_STAGE_OK, result);
    EXPECT_EQ(nullptr, stream);
    EXPECT_THAT(ls_stage_last_error(), HasSubstr(text));
  };
  const int64_t zero[] = {4, 0}, other[] = {4, 3};
  const ls_stage_options none = Options(LS_STAGE_LATEST, 0), odd = Options(9, 1),
                         unspilled = Options(LS_STAGE_REPLAY, 1);
  expect("no stream s in ", ls_stage_attach("s", 0, 1, 0, &stream));
  expect("shard 2 of 2", ls_stage_attach("s", 2, 2, 0, &stream));
  expect("k is 0", ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &none, 1, &stream));
  expect("no such policy: 9", ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &odd, 1, &stream));
  expect("needs a spill file", ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &unspilled, 1, &stream));
  expect("no such dtype: 0", ls_stage_open("s", 0, 1, 0, 2, kShape, &how, 1, &stream));
  expect("0 dimensions", ls_stage_open("s", 0, 1, LS_STAGE_F32, 0, kShape, &how, 1, &stream));
  expect("dimension 1 is 0", ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, zero, &how, 1, &stream));
  expect("rank 1 of 1", ls_stage_open("s", 1, 1, LS_STAGE_F32, 2, kShape, &how, 1, &stream));
  expect("is no name", ls_stage_open("../s", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &stream));
  const int64_t huge[] = {int64_t{1} << 38, 1};  // 1 TiB, of 128 ranks, in 131072 slots: 2^64
  ls_stage_options many = Options(LS_STAGE_LATEST, LS_STAGE_SLOTS);
  many.spare = LS_STAGE_SLOTS;
  expect("File too large", ls_stage_open("s", 0, 128, LS_STAGE_F32, 2, huge, &many, 1, &stream));
  ls_stage* writer = Open(how, 0, 2);
  expect("has a writer of rank 0 already", ls_stage_open("s", 0, 2, LS_STAGE_F32, 2, kShape, &how, 1, &stream));
  expect("exists with 2 ranks, f32 [4 2], latest, k 2; this rank says 2 ranks, f32 [4 3]",
         ls_stage_open("s", 1, 2, LS_STAGE_F32, 2, other, &how, 1, &stream));
  expect("this rank says 2 ranks, f64", ls_stage_open("s", 1, 2, LS_STAGE_F64, 2, kShape, &how, 1, &stream));
  writer->segment.head->version = 2;
  expect("has version 2, this library 1", ls_stage_attach("s", 0, 1, 0, &stream));
  writer->segment.head->version = LS_SEGMENT_VERSION;
  for (uint32_t* field : {&writer->head->slots, reinterpret_cast<uint32_t*>(&writer->head->slot_stride),
                          reinterpret_cast<uint32_t*>(&writer->head->facts.ranks)}) {
    for (const uint32_t wrong : {0U, 1U, 1000U, UINT32_MAX}) {
      const uint32_t right = std::exchange(*field, wrong);
      expect("is damaged: remove it", ls_stage_attach("s", 0, 1, 0, &stream));
      *field = right;
    }
  }
  ls_stage_close(writer, 0);
}

TEST_F(Stream, NoRoomForNamesOfSteps) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  ls_stage* reader = Attach();
  Put(writer, 0);
  Put(writer, 1);
  int64_t step = -7;
  EXPECT_EQ(2, ls_stage_list(reader, &step, -1));
  EXPECT_EQ(-7, step);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

// Somebody is in the folder, making a large stream.
TEST_F(Stream, WaitsForTheFolderAsLongAsItWasToldTo) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  int room = open((folder_ + "/room").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(0, flock(room, LOCK_EX));
  ls_stage* reader = nullptr;
  ls_model* model = nullptr;
  const int64_t begin = ls_stage_now_ns();
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_attach("s", 0, 1, 0.01, &reader));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("is locked by another process"));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_infer_open("net", 0.01, &model));
  EXPECT_LT(ls_stage_now_ns() - begin, 900'000'000);
  std::jthread leaves([room] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    close(room);
  });
  EXPECT_EQ(LS_STAGE_OK, ls_stage_attach("s", 0, 1, 60, &reader)) << ls_stage_last_error();
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, StepsOutOfOrder) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  EXPECT_EQ(LS_STAGE_ORDER, ls_stage_commit(writer));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("commit without reserve"));
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 5));
  EXPECT_EQ(LS_STAGE_ORDER, Put(writer, 5));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("step 5 does not follow step 5"));
  EXPECT_EQ(LS_STAGE_ORDER, Put(writer, -1));
  EXPECT_EQ(LS_STAGE_OK, Begin(writer, 6));
  EXPECT_EQ(LS_STAGE_ORDER, Begin(writer, 7));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("step 6 is reserved"));
  ls_stage_close(writer, 0);
}

}  // namespace
}  // namespace lockstep::stage
