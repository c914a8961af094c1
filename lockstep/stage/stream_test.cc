#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "lockstep/stage/spill.h"
#include "lockstep/stage/stage.h"
#include "lockstep/stage/stream.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kShape[] = {4, 2};

ls_stage_options Options(int policy, uint32_t k) { return {.policy = policy, .k = k, .spare = 0, .readers = 0, .seed = 1, .spill = nullptr}; }

// A child that runs `body` and can be killed at the point where it calls Stop().
class Child {
 public:
  explicit Child(const std::function<void(Child&)>& body) {
    EXPECT_EQ(0, pipe(ready_));
    pid_ = fork();
    if (pid_ != 0) {
      char byte;
      EXPECT_EQ(1, read(ready_[0], &byte, 1));
      return;
    }
    body(*this);
    _exit(0);
  }
  ~Child() {
    Kill();
    close(ready_[0]);
    close(ready_[1]);
  }
  void Stop() {  // in the child
    if (write(ready_[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  int ready_[2];
  pid_t pid_;
};

class Stream : public ::testing::Test {
 protected:
  Stream() {
    char pattern[] = "/tmp/lockstep-stage-XXXXXX";
    folder_ = mkdtemp(pattern);
    setenv("LOCKSTEP_STAGE_DIR", (folder_ + "/room").c_str(), 1);
  }
  ~Stream() override {
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/room")) << "something is left in it";
    std::filesystem::remove_all(folder_);
  }
  ls_stage* Open(const ls_stage_options& how, int rank = 0, int ranks = 1) {
    ls_stage* stream = nullptr;
    EXPECT_EQ(LS_STAGE_OK, ls_stage_open("s", rank, ranks, LS_STAGE_F32, 2, kShape, &how, 1, &stream)) << ls_stage_last_error();
    return stream;
  }
  ls_stage* Attach(int shard = 0, int shards = 1) {
    ls_stage* stream = nullptr;
    EXPECT_EQ(LS_STAGE_OK, ls_stage_attach("s", shard, shards, 0, &stream)) << ls_stage_last_error();
    return stream;
  }
  // Part of rank r of step t is full of 100 t + r.
  static int Begin(ls_stage* stream, int64_t step, double timeout_s = 0) {
    void* memory = nullptr;
    const int result = ls_stage_reserve(stream, step, timeout_s, &memory);
    if (result != LS_STAGE_OK) return result;
    for (int i = 0; i < 8; ++i) static_cast<float*>(memory)[i] = static_cast<float>(100 * step + stream->rank);
    return result;
  }
  static int Put(ls_stage* stream, int64_t step, double timeout_s = 0) {
    const int result = Begin(stream, step, timeout_s);
    return result == LS_STAGE_OK ? ls_stage_commit(stream) : result;
  }
  static void ExpectWhole(const ls_stage_step& step, int ranks = 1) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto* part = reinterpret_cast<const float*>(static_cast<const char*>(step.memory) + 64 * rank);
      for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<float>(100 * step.step + rank), part[i]) << "rank " << rank;
    }
  }
  static int64_t Next(ls_stage* reader, int ranks = 1) {
    ls_stage_step step;
    const int result = ls_stage_next(reader, 0, &step);
    if (result != LS_STAGE_OK) return -result;
    ExpectWhole(step, ranks);
    EXPECT_EQ(LS_STAGE_OK, ls_stage_release(reader, &step));
    return step.step;
  }
  static std::vector<int64_t> Steps(ls_stage* reader) {
    std::vector<int64_t> steps(100);
    steps.resize(static_cast<size_t>(ls_stage_list(reader, steps.data(), 100)));
    return steps;
  }
  static ls_stage_facts Facts(ls_stage* reader) {
    ls_stage_facts facts;
    EXPECT_EQ(LS_STAGE_OK, ls_stage_look(reader, &facts));
    return facts;
  }
  std::string folder_;
};

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
      for (int64_t step = 0; step < kSteps; ++step) ASSERT_EQ(LS_STAGE_OK, Put(writer, step, 60)) << ls_stage_last_error();
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
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("takes no more"));
  EXPECT_EQ(LS_STAGE_SPILL, Put(writer, 1));
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(2U, Facts(reader).spill_failures);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

// ---- deaths ----

TEST_F(Stream, AWriterKilledInTheMiddleOfAStep) {
  const ls_stage_options how = Options(LS_STAGE_LOSSLESS, 2);
  Child child([&](Child& self) {
    ls_stage* writer = Open(how);
    Put(writer, 0);
    Begin(writer, 1);
    self.Stop();
  });
  ls_stage* reader = Attach();
  child.Kill();
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(-LS_STAGE_DIED, Next(reader));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("is gone after step 0"));
  ls_stage* again = Open(how);
  EXPECT_EQ(0, ls_stage_last_step(again));
  EXPECT_EQ(-LS_STAGE_TIMEOUT, Next(reader)) << "step 1 of the dead is not there";
  EXPECT_EQ(LS_STAGE_OK, Put(again, 1));
  EXPECT_EQ(LS_STAGE_OK, Put(again, 2)) << "the slot of the dead is free";
  EXPECT_EQ(1, Next(reader));
  EXPECT_EQ(1U, Facts(reader).incomplete);
  ls_stage_close(again, 0);
  ls_stage_detach(reader);
}

// Both ranks write as fast as they can and are killed wherever they are: what is visible is whole and in order.
TEST_F(Stream, WritersKilledAnywhere) {
  const ls_stage_options how = Options(LS_STAGE_LOSSLESS, 3);
  ls_stage* before = Open(how, 0, 2);
  ls_stage* reader = Attach();
  ls_stage_close(before, 0);
  std::mt19937 random(11);
  int64_t last = -1;
  for (int round = 0; round < 100; ++round) {
    Child child([&](Child& self) {
      ls_stage* writers[] = {Open(how, 0, 2), Open(how, 1, 2)};
      const int64_t begin = ls_stage_last_step(writers[0]) + 1;
      const auto write = [&](ls_stage* writer) {
        for (int64_t step = begin;; ++step) Put(writer, step, 60);
      };
      std::thread(write, writers[0]).detach();
      std::thread(write, writers[1]).detach();
      self.Stop();
    });
    for (uint64_t reads = random() % 100; reads > 0; --reads) {
      ls_stage_step got;
      ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 60, &got)) << ls_stage_last_error();
      ASSERT_EQ(last + 1, got.step);
      last = got.step;
      ExpectWhole(got, 2);
      ls_stage_release(reader, &got);
    }
    child.Kill();
  }
  int64_t step;
  while ((step = Next(reader, 2)) >= 0) ASSERT_EQ(++last, step);
  EXPECT_EQ(-LS_STAGE_DIED, step);
  EXPECT_GT(last, 1000);
  EXPECT_EQ(0U, Facts(reader).unread);
  ls_stage_detach(reader);
}

TEST_F(Stream, NoStepIsMadeOfPartsOfTwoStarts) {
  const ls_stage_options how = Options(LS_STAGE_LOSSLESS, 4);
  Child child([&](Child& self) {
    ls_stage* first = Open(how, 0, 2);
    Open(how, 1, 2);
    Put(first, 0);  // rank 1 does not come to it
    self.Stop();
  });
  ls_stage* reader = Attach();
  child.Kill();
  ls_stage* second = Open(how, 1, 2);
  EXPECT_EQ(LS_STAGE_OK, Put(second, 0));
  EXPECT_EQ(0U, Facts(reader).visible) << "the other part is of an earlier start";
  ls_stage* first = Open(how, 0, 2);
  EXPECT_EQ(LS_STAGE_OK, Put(first, 0));
  EXPECT_EQ(0, Next(reader, 2));
  ls_stage* other = nullptr;
  ls_stage_close(first, 0);
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 0, 2, LS_STAGE_F32, 2, kShape, &how, 1, &other)) << "rank 1 still runs";
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("all ranks start anew, or none"));
  ls_stage_close(second, 0);
  ls_stage_detach(reader);
}

// A robust mutex: whoever comes next settles.
TEST_F(Stream, AWriterKilledWithTheLock) {
  const ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  ls_stage* before = Open(how);
  ls_stage* reader = Attach();
  ls_stage_close(before, 0);
  Child child([&](Child& self) {
    ls_stage* writer = Open(how);
    for (int64_t step = 0; step < 3; ++step) Put(writer, step);
    ls_stream_lock(writer, ls_stage_deadline(1));
    ls_slot* slot = ls_room_for_step(writer);  // as ls_show() does, up to the store that makes it visible
    slot->step = 3;
    slot->index = 3;
    slot->held = slot->taken = 0;
    slot->state = LS_SLOT_SHOWN;
    self.Stop();
  });
  child.Kill();
  EXPECT_THAT(Steps(reader), ElementsAre(2, 3));
  ls_stage* again = Open(how);
  EXPECT_EQ(3, ls_stage_last_step(again));
  EXPECT_EQ(LS_STAGE_OK, Put(again, 4));
  EXPECT_THAT(Steps(reader), ElementsAre(3, 4));
  ls_stage_close(again, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, AReaderThatDiesHoldsNothing) {
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 2));
  Put(writer, 0);
  Put(writer, 1);
  Child child([&](Child& self) {
    ls_stage* reader = Attach();
    ls_stage_step step;
    ls_stage_next(reader, 0, &step);
    self.Stop();
  });
  EXPECT_EQ(LS_STAGE_TIMEOUT, Put(writer, 2, 0.2)) << "it lives, and holds step 0";
  child.Kill();
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 2, 60));
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 3));
  ls_stage* reader = Attach();
  EXPECT_EQ(1U, Facts(reader).readers_reaped);
  EXPECT_EQ(1U, Facts(reader).unread);  // step 1: nobody had it, and nobody was there to have it
  EXPECT_THAT(Steps(reader), ElementsAre(2, 3));
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, WhatTheKilledLeftIsRemovedByTheNext) {
  Child child([&](Child& self) {
    Open(Options(LS_STAGE_LATEST, 2));
    self.Stop();
  });
  child.Kill();
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/room/s.stream"));
  ls_stage* stream = nullptr;
  EXPECT_EQ(LS_STAGE_ABSENT, ls_stage_attach("another", 0, 1, 0, &stream));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/room"));
}

TEST_F(Stream, AForkedChildIsNotAWriter) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  const pid_t child = fork();
  if (child == 0) _exit(Put(writer, 0) == LS_STAGE_REFUSED && ls_stage_close(writer, 0) == LS_STAGE_REFUSED ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 0));
  ls_stage_close(writer, 0);
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
  const ls_stage_options none = Options(LS_STAGE_LATEST, 0), odd = Options(9, 1), unspilled = Options(LS_STAGE_REPLAY, 1);
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
  ls_stage* writer = Open(how, 0, 2);
  expect("has a writer of rank 0 already", ls_stage_open("s", 0, 2, LS_STAGE_F32, 2, kShape, &how, 1, &stream));
  expect("exists with 2 ranks, f32 [4 2], latest, k 2; this rank says 2 ranks, f32 [4 3]",
         ls_stage_open("s", 1, 2, LS_STAGE_F32, 2, other, &how, 1, &stream));
  expect("this rank says 2 ranks, f64", ls_stage_open("s", 1, 2, LS_STAGE_F64, 2, kShape, &how, 1, &stream));
  writer->segment.head->version = 2;
  expect("has version 2, this library 1", ls_stage_attach("s", 0, 1, 0, &stream));
  writer->segment.head->version = LS_SEGMENT_VERSION;
  ls_stage_close(writer, 0);
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
