#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/stage/infer.h"
#include "lockstep/stage/stream_fixture.h"

namespace {

// tmpfs of older kernels gives up what is interrupted by a signal. 0: none comes.
off_t memory_between_signals = 0;
int calls = 0;

}  // namespace

extern "C" int posix_fallocate(int file, off_t offset, off_t length) {  // in place of that of libc
  if (memory_between_signals == 0 || length <= memory_between_signals)
    return fallocate(file, 0, offset, length) == 0 ? 0 : errno;
  return ++calls < 10'000 ? EINTR : EIO;
}

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
    EXPECT_FALSE(std::filesystem::exists(folder_ / "room"));
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

// As when a signal's handler waits while the program does.
TEST_F(Stream, AWaitInSlicesGoesOnAfterOneWithinIt) {
  ls_stage* writer = Open({.policy = LS_STAGE_LOSSLESS, .k = 2, .spare = 0, .readers = 1, .seed = 0, .spill = nullptr});
  ls_stage* reader = Attach();
  ls_stage_step step;
  const auto next_within = [&] {
    ls_stage_slices(0.01);
    while (ls_stage_next(reader, 0.2, &step) == LS_STAGE_AGAIN) continue;
    ls_stage_slices(0);
  };
  for (const auto& [limit, then] : {std::pair{3600.0, LS_STAGE_AGAIN}, {0.1, LS_STAGE_TIMEOUT}}) {
    ls_stage_slices(0.02);
    EXPECT_EQ(LS_STAGE_AGAIN, ls_stage_next(reader, limit, &step));
    next_within();
    EXPECT_EQ(then, ls_stage_next(reader, limit, &step)) << "its limit counts from its own first slice";
    ls_stage_slices(0);
  }
  EXPECT_EQ(LS_STAGE_TIMEOUT, ls_stage_next(reader, 0.1, &step)) << "no slices any more";
  EXPECT_EQ(LS_STAGE_OK, ls_stage_close(writer, 0));
  ls_stage_detach(reader);
}

// Each call ends with its slice; the wait ends at its limit, is counted once, and says how long it was.
TEST_F(Stream, AWaitInSlicesIsOneWait) {
  ls_stage* writer = Open({.policy = LS_STAGE_LOSSLESS, .k = 2, .spare = 0, .readers = 2, .seed = 0, .spill = nullptr});
  for (const int64_t step : {0, 1}) EXPECT_EQ(LS_STAGE_OK, Put(writer, step));
  ls_stage* reader = Attach();
  for (const int64_t step : {0, 1}) EXPECT_EQ(step, Next(reader));
  ls_stage* none = nullptr;
  ls_stage_step step;
  const std::pair<std::function<int()>, std::string> waits[] = {
      {[&] { return Begin(writer, 2, 0.2); }, "no room for step 2 in 0.2 s"},
      {[&] { return ls_stage_next(reader, 0.2, &step); }, "no step after index 1 in 0.2 s"},
      {[&] { return ls_stage_attach("none", 0, 1, 0.2, &none); }, "no writer has opened it in 0.2 s"},
      {[&] { return ls_stage_linger(writer, 0.2); }, "closed before 2 readers had come, in 0.2 s: 1 did"}};
  for (const auto& [wait, text] : waits) {
    ls_stage_slices(0.02);
    int slices = 0;
    const auto in_slices = [&] {
      while (wait() == LS_STAGE_AGAIN) ++slices;
    };
    EXPECT_GE(Seconds(in_slices), 0.2) << text;
    EXPECT_GT(slices, 0) << text;
    EXPECT_THAT(ls_stage_last_error(), HasSubstr(text));
    ls_stage_slices(0);
    EXPECT_NE(LS_STAGE_AGAIN, wait());
  }
  EXPECT_EQ(2U, Facts(reader).writer_waits) << "one in slices, and one at once";
  EXPECT_EQ(LS_STAGE_TIMEOUT, ls_stage_close(writer, 0));
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

// A profiler's, say, that come faster than memory.
TEST_F(Stream, IsMadeUnderManySignals) {
  memory_between_signals = 5000;
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 1000));
  memory_between_signals = 0;
  ls_stage_close(writer, 0);
}

TEST_F(Stream, WhatIsNotThere) {
  const ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  ls_stage *writer = Open(how), *reader = Attach(), *none = nullptr;
  ls_stage_step step{};
  ls_stage_facts facts;
  void* memory = nullptr;
  const auto expect = [](const std::string& text, int result) {
    EXPECT_EQ(LS_STAGE_REFUSED, result);
    EXPECT_THAT(ls_stage_last_error(), HasSubstr(text));
  };
  const auto refuses_all = [&](ls_stage* w, ls_stage* r) {
    for (const int result :
         {ls_stage_reserve(w, 1, 0, &memory), ls_stage_commit(w), ls_stage_abandon(w), ls_stage_close(w, 0)}) {
      expect("this call needs a stream from ls_stage_open() that is not closed", result);
    }
    for (const int result : {ls_stage_look(r, &facts), ls_stage_next(r, 0, &step), ls_stage_get(r, 0, &step),
                             ls_stage_release(r, &step), ls_stage_detach(r), ls_stage_leave(r)}) {
      expect("this call needs a stream from ls_stage_attach() that is not closed", result);
    }
    EXPECT_EQ(-1, ls_stage_list(r, nullptr, 0));
  };
  refuses_all(nullptr, nullptr);
  refuses_all(reader, writer);
  EXPECT_EQ(-1, ls_stage_last_step(nullptr));
  expect("shape is NULL", ls_stage_open("t", 0, 1, LS_STAGE_F32, 2, nullptr, &how, 1, &none));
  expect("no such policy: 0", ls_stage_open("t", 0, 1, LS_STAGE_F32, 2, kShape, nullptr, 1, &none));
  expect("stream is NULL", ls_stage_open("t", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, nullptr));
  expect("is no name", ls_stage_open(nullptr, 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &none));
  expect("stream is NULL", ls_stage_attach("s", 0, 1, 0, nullptr));
  expect("is no name", ls_stage_attach(nullptr, 0, 1, 0, &none));
  expect("memory is NULL", ls_stage_reserve(writer, 0, 0, nullptr));
  expect("facts is NULL", ls_stage_look(reader, nullptr));
  expect("step is NULL", ls_stage_next(reader, 0, nullptr));
  expect("step is NULL", ls_stage_get(reader, 0, nullptr));
  expect("step is NULL", ls_stage_release(reader, nullptr));
  Put(writer, 0);
  EXPECT_EQ(1, ls_stage_list(reader, nullptr, 5));
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
  refuses_all(writer, reader);
  EXPECT_EQ(-1, ls_stage_last_step(writer));
}

// Also when another is opened where it was.
TEST_F(Stream, AHandleThatIsClosedStaysSo) {
  const ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  std::vector<ls_stage*> closed;
  for (int i = 0; i < 40; ++i) {
    closed.push_back(Open(how));
    closed.push_back(Attach());
    EXPECT_EQ(LS_STAGE_OK, ls_stage_close(closed.end()[-2], 0));
    EXPECT_EQ(LS_STAGE_OK, ls_stage_detach(closed.back()));
  }
  ls_stage *writer = Open(how), *reader = Attach();
  for (ls_stage* one : closed) {
    EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_close(one, 0));
    EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_detach(one));
  }
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 0));
  EXPECT_EQ(0, Next(reader));
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, AStepIsReleasedOnce) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 1));
  ls_stage* reader = Attach();
  ls_stage_step first, second;
  Put(writer, 0);
  ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 0, &first));
  EXPECT_EQ(LS_STAGE_OK, ls_stage_release(reader, &first));
  const auto lies_where_the_first_did = [&] {
    Put(writer, ls_stage_last_step(writer) + 1);
    EXPECT_EQ(LS_STAGE_OK, ls_stage_next(reader, 0, &second));
    return second.slot == first.slot || ls_stage_release(reader, &second) != LS_STAGE_OK;
  };
  ASSERT_TRUE(Comes(lies_where_the_first_did));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_release(reader, &first)) << "it would give up the second one";
  EXPECT_EQ(1, Taken(writer).second);
  EXPECT_EQ(LS_STAGE_OK, ls_stage_release(reader, &second));
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

// The lock of a stream is held for microseconds: that somebody has it is no reason to lose a step.
TEST_F(Stream, AWriterThatDoesNotWaitStillWaitsForTheLock) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 1));
  for (int tries = 0; tries < 5 && ls_stage_last_step(writer) < 0; ++tries) {  // of 50 ms each
    ls_stream_lock(writer, ls_stage_deadline(60));
    std::atomic<bool> begun = false, done = false;
    std::jthread puts([&] {
      begun = true;
      begun.notify_one();
      Put(writer, 0);
      done = true;
    });
    begun.wait(false);
    const int64_t moment = ls_stage_deadline(0.02);
    while (ls_stage_now_ns() < moment && !done) {
    }
    ls_stream_unlock(writer);
  }
  EXPECT_EQ(0, ls_stage_last_step(writer)) << ls_stage_last_error();
  ls_stage_close(writer, 0);
}

// By a process that was stopped, say, and goes on in the end.
TEST_F(Stream, TheTimeForALockCountsAsWaiting) {
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 1), 0, 2);
  Begin(writer, 0);
  ls_stage_commit(writer);
  std::promise<void> locked;
  std::jthread holder([&] {
    ls_stream_lock(writer, ls_stage_deadline(60));
    const int64_t moment = ls_stage_deadline(1);
    locked.set_value();
    while (ls_stage_now_ns() < moment) {
    }
    ls_stream_unlock(writer);
  });
  locked.get_future().wait();
  const auto reserve = [&] { EXPECT_EQ(LS_STAGE_TIMEOUT, Begin(writer, 1, 1)); };
  EXPECT_LT(Seconds(reserve), 1.8) << "there is no room, and none was waited for anew";
  holder.join();
  ls_stage_close(writer, 0);
}

TEST_F(Stream, TheTimeForTheFolderCountsAsWaitingForTheLock) {
  const ls_stage_options how = Options(LS_STAGE_LATEST, 1);
  ls_stage *writer = Open(how, 0, 2), *other = nullptr;
  const int room = open((folder_ / "room").c_str(), O_RDONLY | O_DIRECTORY);
  std::promise<void> locked, left;
  std::jthread holder([&] {
    ls_stream_lock(writer, ls_stage_deadline(60));
    EXPECT_EQ(0, flock(room, LOCK_EX));
    const int64_t moment = ls_stage_deadline(0.9);
    locked.set_value();
    while (ls_stage_now_ns() < moment) {
    }
    close(room);
    left.get_future().wait();
    ls_stream_unlock(writer);
  });
  locked.get_future().wait();
  const auto open = [&] { EXPECT_NE(LS_STAGE_OK, ls_stage_open("s", 1, 2, LS_STAGE_F32, 2, kShape, &how, 1, &other)); };
  EXPECT_LT(Seconds(open), 1.7);
  left.set_value();
  holder.join();
  ls_stage_close(writer, 0);
}

// It is another rank's, which opens: it enters what it is before its process.
TEST_F(Stream, AWriterThatIsAboutToOpenIsNotDead) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 1), 0, 2);
  ls_stage* reader = Attach();
  ls_member* opens = &writer->segment.head->member[1];
  opens->epoch = writer->head->epoch;
  std::jthread other([&] {
    for (int times = 0; times < 3; ++times) {
      ls_stream_lock(writer, ls_stage_deadline(60));
      __atomic_store_n(&opens->state, LS_MEMBER_WRITES, __ATOMIC_RELEASE);
      const int64_t looked = ls_stage_deadline(0.1);  // twice as long as the reader takes for it
      while (ls_stage_now_ns() < looked) {
      }
      __atomic_store_n(&opens->state, LS_MEMBER_NONE, __ATOMIC_RELEASE);
      ls_stream_unlock(writer);
    }
  });
  ls_stage_step step;
  EXPECT_EQ(LS_STAGE_TIMEOUT, ls_stage_next(reader, 0.5, &step)) << ls_stage_last_error();
  other.join();
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

// The stream is locked by who was stopped, say, for longer than the reader waits.
TEST_F(Stream, AReaderThatCannotLockTheStreamLeavesNothingHeld) {
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 1));
  ls_stage* reader = Attach();
  ls_stage_step step;
  Put(writer, 0);
  ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 0, &step));
  std::promise<void> locked, left;
  std::jthread holder([&] {
    ls_stream_lock(writer, ls_stage_deadline(60));
    locked.set_value();
    left.get_future().wait();
    ls_stream_unlock(writer);
  });
  locked.get_future().wait();
  const int room = open((folder_ / "room").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(0, flock(room, LOCK_EX));
  EXPECT_LT(Seconds([&] { EXPECT_EQ(LS_STAGE_OK, ls_stage_detach(reader)); }), 1.8) << "a second for both";
  close(room);
  left.set_value();
  holder.join();
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 1, 60));
  EXPECT_EQ(std::pair(1, 0), Taken(writer));
  ls_stage_close(writer, 0);
}

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
  const std::string path = folder_ / "room";
  const int room = open(path.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(0, flock(room, LOCK_EX));
  ls_stage* reader = nullptr;
  ls_model* model = nullptr;
  const int64_t begin = ls_stage_now_ns();
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_attach("s", 0, 1, 0.01, &reader));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("is locked by another process"));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_infer_open("net", 0.01, &model));
  EXPECT_LT(ls_stage_now_ns() - begin, 900'000'000);
  const int tries = inotify_init1(IN_CLOEXEC);
  ASSERT_LE(0, inotify_add_watch(tries, path.c_str(), IN_OPEN));
  std::jthread leaves([room, tries] {  // when somebody has tried a thousand times, a millisecond apart
    for (int seen = 0; seen < 1000; ++seen) {
      inotify_event opened;
      if (read(tries, &opened, sizeof opened) != sizeof opened) break;
    }
    close(room);
  });
  EXPECT_EQ(LS_STAGE_OK, ls_stage_attach("s", 0, 1, 60, &reader)) << ls_stage_last_error();
  leaves.join();
  close(tries);
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
