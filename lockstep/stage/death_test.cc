#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/stage/spill.h"
#include "lockstep/stage/stream_fixture.h"

namespace lockstep::stage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Deaths : public Stream {};

TEST_F(Deaths, AWriterKilledInTheMiddleOfAStep) {
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

// Two ranks that write as fast as they can, from where the stream is.
void WriteForEver(ls_stage* first, ls_stage* second, int (*put)(ls_stage*, int64_t, double)) {
  const int64_t begin = ls_stage_last_step(first) + 1;
  for (ls_stage* writer : {first, second}) {
    std::thread([=] {
      for (int64_t step = begin;; ++step) put(writer, step, 60);
    }).detach();
  }
}

// They are killed wherever they are: what is visible is whole and in order.
TEST_F(Deaths, WritersKilledAnywhere) {
  const ls_stage_options how = Options(LS_STAGE_LOSSLESS, 3);
  ls_stage* before = Open(how, 0, 2);
  ls_stage* reader = Attach();
  ls_stage_close(before, 0);
  std::mt19937 random(11);
  int64_t last = -1;
  for (int round = 0; round < 100; ++round) {
    Child child([&](Child& self) {
      ls_stage* first = Open(how, 0, 2);
      WriteForEver(first, Open(how, 1, 2), Put);
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

TEST_F(Deaths, TheSpillFileHasEachStepOnce) {
  const std::string path = folder_ + "/all.spill";
  ls_stage_options how = Options(LS_STAGE_REPLAY, 3);
  how.spill = path.c_str();
  ls_stage* before = Open(how, 0, 2);
  ls_stage* reader = Attach();
  ls_stage_close(before, 0);
  std::mt19937 random(12);
  for (int round = 0; round < 50; ++round) {
    Child child([&](Child& self) {
      ls_stage* first = Open(how, 0, 2);
      WriteForEver(first, Open(how, 1, 2), Put);
      self.Stop();
    });
    for (uint64_t reads = random() % 50; reads > 0; --reads) {
      ls_stage_step got;
      ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 60, &got)) << ls_stage_last_error();
      ls_stage_release(reader, &got);
    }
    child.Kill();
  }
  const uint64_t visible = Facts(reader).visible, spilled = Facts(reader).spilled;
  EXPECT_GE(visible, spilled);
  EXPECT_LE(visible, spilled + 1) << "killed between the two";
  EXPECT_GT(spilled, 500U);
  std::ifstream file(path, std::ios::binary);
  for (uint64_t index = 0; index < spilled; ++index) {
    ls_spill_record record;
    std::vector<char> parts(128);
    file.seekg(static_cast<std::streamoff>(LS_SPILL_PAGE + index * ls_spill_stride(parts.size())));
    file.read(reinterpret_cast<char*>(&record), sizeof record);
    file.ignore(LS_SPILL_RECORD - sizeof record);
    file.read(parts.data(), static_cast<std::streamsize>(parts.size()));
    ASSERT_EQ(static_cast<int64_t>(index), record.step);
    ASSERT_EQ(index, record.index);
    ASSERT_EQ(ls_stage_crc32c(parts.data(), parts.size()), record.crc);
    ExpectWhole({.step = record.step, .index = 0, .memory = parts.data(), .slot = 0, .reserved = 0}, 2);
  }
  ls_stage_detach(reader);
}

TEST_F(Deaths, NoStepIsMadeOfPartsOfTwoStarts) {
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
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 0, 2, LS_STAGE_F32, 2, kShape, &how, 1, &other))
      << "rank 1 still runs";
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("all ranks start anew, or none"));
  ls_stage_close(second, 0);
  ls_stage_detach(reader);
}

// A robust mutex: whoever comes next settles.
TEST_F(Deaths, AWriterKilledWithTheLock) {
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

TEST_F(Deaths, AReaderThatDiesHoldsNothing) {
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

// Opens nothing more while it lives.
struct NoMoreFiles {
  NoMoreFiles() {
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreFiles() { setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

TEST_F(Deaths, WhoCannotBeLookedUpLives) {
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 2));
  ls_stage* reader = Attach();
  Put(writer, 0);
  Put(writer, 1);
  {
    const NoMoreFiles limit;
    EXPECT_EQ(LS_STAGE_TIMEOUT, Put(writer, 2, 0.2)) << "steps that a living reader has yet to get are not given up";
    ls_member self{};
    EXPECT_EQ(LS_STAGE_REFUSED, ls_member_enter(&self, 1));
    EXPECT_THAT(ls_stage_last_error(), HasSubstr("Too many open files"));
    EXPECT_EQ(0, self.pid);
  }
  EXPECT_EQ(0U, Facts(reader).readers_reaped);
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(1, Next(reader));
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Deaths, WhatTheKilledLeftIsRemovedByTheNext) {
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

TEST_F(Deaths, AForkedChildIsNotAWriter) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  const pid_t child = fork();
  if (child == 0) _exit(Put(writer, 0) == LS_STAGE_REFUSED && ls_stage_close(writer, 0) == LS_STAGE_REFUSED ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 0));
  ls_stage_close(writer, 0);
}

}  // namespace
}  // namespace lockstep::stage
