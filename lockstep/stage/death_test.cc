#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <cstddef>
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
  const std::string path = folder_ / "all.spill";
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
    const char* place = reinterpret_cast<const char*>(&record) + offsetof(ls_spill_record, step);
    std::vector<char> covered(place, place + sizeof record.step + sizeof record.index);
    covered.insert(covered.end(), parts.begin(), parts.end());
    ASSERT_EQ(ls_stage_crc32c(covered.data(), covered.size()), record.crc);
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

// A simulation that never waits finds that out, too.
TEST_F(Deaths, AReaderThatDiesIsNotInTheWayOfAWriterThatDoesNotWait) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 1));
  Child child([&](Child& self) {
    ls_stage* reader = Attach();
    for (int64_t step = 0; step < 4; ++step) {  // all that there is room for
      ls_stage_step held;
      if (step == 0) self.Ready();
      ls_stage_next(reader, 60, &held);
    }
    self.Stop();
  });
  for (int64_t step = 0; step < 4; ++step) {
    ASSERT_TRUE(Comes([&] { return Taken(writer).second >= step; }));
    ASSERT_EQ(LS_STAGE_OK, Put(writer, step));
  }
  ASSERT_TRUE(Comes([&] { return Taken(writer).second == 4; }));
  EXPECT_EQ(LS_STAGE_TIMEOUT, Put(writer, 4));
  child.Kill();
  EXPECT_TRUE(Comes([&] { return Put(writer, 4) != LS_STAGE_TIMEOUT; }));
  EXPECT_EQ(4, ls_stage_last_step(writer));
  EXPECT_EQ(std::pair(1, 0), Taken(writer));
  ls_stage_close(writer, 0);
}

// In the middle of ls_drop_reader(): at its first store to a slot in a page that this process can't write to. The last
// step is in such a one, and held.
TEST_F(Deaths, WhoIsKilledWhileItDropsADeadReader) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto k = static_cast<uint32_t>(2 * page / sizeof(ls_slot));
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, k));
  for (uint32_t step = 0; step < k; ++step) Put(writer, step);
  Child dead([&](Child& self) {
    ls_stage* reader = Attach();
    ls_stage_step step;
    ls_stage_get(reader, k - 1, &step);
    self.Stop();
  });
  dead.Kill();
  ASSERT_EQ(1, Taken(writer).second);
  const pid_t dropper = fork();
  if (dropper == 0) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(writer->slots) / page * page + page;
    signal(SIGSEGV, [](int) { _exit(3); });
    ls_stream_lock(writer, ls_stage_deadline(60));
    mprotect(reinterpret_cast<void*>(first), page, PROT_READ);
    ls_drop_reader(writer, 0);
    _exit(5);
  }
  int status = 0;
  waitpid(dropper, &status, 0);
  ASSERT_EQ(3, WEXITSTATUS(status));
  EXPECT_EQ(LS_STAGE_OK, Put(writer, k, 60));
  EXPECT_EQ(0, Taken(writer).second);
  ls_stage_close(writer, 0);
}

// Whether it dies before the new one looks who is alive, or after, or while it looks at 40 others.
TEST_F(Deaths, AReaderInheritsNothing) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 1));
  Put(writer, 0);
  std::vector<ls_stage*> others;
  for (int round = 0; round < 100; ++round) {
    Child dies([&](Child& self) {
      ls_stage* reader = Attach();
      ls_stage_step step;
      ls_stage_next(reader, 0, &step);
      self.Stop();
    });
    while (others.size() < 40) others.push_back(Attach());
    std::jthread kills([&] { dies.Kill(); });
    ls_stage* reader = Attach();
    kills.join();
    ls_stream_lock(writer, ls_stage_deadline(60));
    ls_reap_readers(writer);
    ls_stream_unlock(writer);
    ASSERT_EQ(0, Taken(writer).second) << "round " << round;
    ls_stage_detach(reader);
  }
  for (ls_stage* reader : others) ls_stage_detach(reader);
  ls_stage_close(writer, 0);
}

// All that a reader calls, for ever.
void ReadForEver(unsigned seed) {
  std::mt19937 random(seed);
  for (;;) {
    ls_stage* reader = nullptr;
    if (ls_stage_attach("s", 0, 1, 60, &reader) != LS_STAGE_OK) _exit(1);
    for (uint64_t calls = random() % 50; calls > 0; --calls) {
      ls_stage_step next, got;
      ls_stage_facts facts;
      int64_t steps[8];
      const bool any = ls_stage_next(reader, 0.001, &next) == LS_STAGE_OK;
      const int count = ls_stage_list(reader, steps, 8);
      const bool one = count > 0 && ls_stage_get(reader, steps[0], &got) == LS_STAGE_OK;
      ls_stage_look(reader, &facts);
      if (any) ls_stage_release(reader, &next);
      if (one && random() % 4 != 0) ls_stage_release(reader, &got);
    }
    ls_stage_detach(reader);
  }
}

// They are killed wherever they are: the writer goes on, and all memory comes back.
TEST_F(Deaths, ReadersKilledAnywhere) {
  for (const int policy : {LS_STAGE_LOSSLESS, LS_STAGE_LATEST, LS_STAGE_RESERVOIR}) {
    ls_stage* writer = Open(Options(policy, 3));
    std::mt19937 random(13);
    int64_t step = 0;
    for (int round = 0; round < 100; ++round) {
      const Child child([&](Child& self) {
        self.Ready();
        ReadForEver(static_cast<unsigned>(round));
      });
      const uint32_t before = writer->head->readers_ever;
      uint64_t puts = random() % 300;
      ASSERT_TRUE(Comes([&] {
        if (puts == 0) return true;
        EXPECT_EQ(LS_STAGE_OK, Put(writer, step++, 60)) << ls_stage_last_error();
        puts -= writer->head->readers_ever != before;
        return HasFailure();
      }));
    }
    ls_stage* reader = Attach();
    for (int more = 0; more < 10; ++more) {
      Next(reader);
      ASSERT_EQ(LS_STAGE_OK, Put(writer, step++, 60)) << ls_stage_last_error();
    }
    EXPECT_EQ(std::pair(3, 0), Taken(writer)) << "policy " << policy;
    EXPECT_EQ(static_cast<uint64_t>(step), Facts(reader).visible);
    EXPECT_GT(Facts(reader).readers_reaped, 0U) << "none was killed while it was attached";
    ls_stage_close(writer, 0);
    ls_stage_detach(reader);
  }
}

// It lives on in its other threads.
TEST_F(Deaths, AProcessWhoseFirstThreadHasLeftLives) {
  const ls_stage_options how = Options(LS_STAGE_LOSSLESS, 1);
  Child child([&](Child& self) {
    std::thread([&] {
      ls_stage_step step;
      Put(Open(how), 0);
      ls_stage_next(Attach(), 0, &step);
      self.Stop();
    }).detach();
    syscall(SYS_exit, 0);
  });
  const std::string path = "/proc/" + std::to_string(child.pid()) + "/stat";
  std::string pid, name, state;
  ASSERT_TRUE(Comes([&] {
    std::ifstream(path) >> pid >> name >> state;
    return state == "Z";
  }));
  ls_stage* reader = Attach();
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(-LS_STAGE_TIMEOUT, Next(reader)) << "its writer lives";
  EXPECT_EQ(0U, Facts(reader).readers_reaped) << "and its reader";
  child.Kill();
  EXPECT_EQ(-LS_STAGE_DIED, Next(reader));
  ls_stage_detach(reader);
}

// A profiler's, say: none of its waits lasts as long as a look at the others is worth.
TEST_F(Deaths, AWriterKilledUnderAReaderThatHasManySignals) {
  Child child([&](Child& self) {
    Put(Open(Options(LS_STAGE_LATEST, 1)), 0);
    self.Stop();
  });
  ls_stage* reader = Attach();
  EXPECT_EQ(0, Next(reader));
  child.Kill();
  const auto before = signal(SIGALRM, [](int) {});
  const itimerval often{{0, 1000}, {0, 1000}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  ls_stage_step step;
  const int64_t begin = ls_stage_now_ns();
  EXPECT_EQ(LS_STAGE_DIED, ls_stage_next(reader, 60, &step));
  EXPECT_LT(ls_stage_now_ns() - begin, 30'000'000'000);
  setitimer(ITIMER_REAL, &never, nullptr);
  signal(SIGALRM, before);
  ls_stage_detach(reader);
}

TEST_F(Deaths, WhoCannotBeLookedUpLives) {
  ls_stage* writer = Open(Options(LS_STAGE_LOSSLESS, 2));
  ls_stage* reader = Attach();
  Put(writer, 0);
  Put(writer, 1);
  {
    const TestLimit limit(RLIMIT_NOFILE, 0);
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
  EXPECT_TRUE(std::filesystem::exists(folder_ / "room/s.stream"));
  ls_stage* stream = nullptr;
  EXPECT_EQ(LS_STAGE_ABSENT, ls_stage_attach("another", 0, 1, 0, &stream));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "room"));
}

TEST_F(Deaths, AtTheLimitOfOpenFilesNobodyComesAndAnybodyGoes) {
  const ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  ls_stage *writer = Open(how), *reader = Attach(), *other = nullptr;
  Put(writer, 0);
  {
    const TestLimit limit(RLIMIT_NOFILE, 0);
    EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_attach("s", 0, 1, 1, &other));
    EXPECT_THAT(ls_stage_last_error(), HasSubstr("Too many open files"));
    EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("t", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &other));
    EXPECT_THAT(ls_stage_last_error(), HasSubstr("Too many open files"));
    EXPECT_EQ(LS_STAGE_OK, Put(writer, 1));
    EXPECT_EQ(0, Next(reader));
    EXPECT_EQ(LS_STAGE_OK, ls_stage_detach(reader));
    EXPECT_EQ(LS_STAGE_OK, ls_stage_close(writer, 0));
  }
  EXPECT_EQ(LS_STAGE_ABSENT, ls_stage_attach("s", 0, 1, 0, &other)) << "whoever comes next removes what they left";
}

TEST_F(Deaths, AForkedChildIsNeitherWriterNorReader) {
  ls_stage *writer = Open(Options(LS_STAGE_LOSSLESS, 2)), *reader = Attach();
  ls_stage_step step;
  Put(writer, 0);
  ASSERT_EQ(LS_STAGE_OK, ls_stage_next(reader, 0, &step));
  Begin(writer, 1);
  const pid_t child = fork();
  if (child == 0) {
    ls_stage_step other;
    ls_stage_facts facts;
    int refused = ls_stage_list(reader, nullptr, 0) == -1;
    for (const int result :
         {Put(writer, 2), ls_stage_commit(writer), ls_stage_abandon(writer), ls_stage_close(writer, 0),
          ls_stage_next(reader, 0, &other), ls_stage_get(reader, 0, &other), ls_stage_look(reader, &facts),
          ls_stage_release(reader, &step), ls_stage_leave(reader), ls_stage_detach(reader)}) {
      refused += result == LS_STAGE_REFUSED;
    }
    _exit(refused);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(11, WEXITSTATUS(status));
  EXPECT_EQ(LS_STAGE_OK, ls_stage_commit(writer));
  EXPECT_EQ(std::pair(2, 1), Taken(writer));
  EXPECT_EQ(LS_STAGE_OK, ls_stage_release(reader, &step));
  EXPECT_EQ(1, Next(reader));
  EXPECT_EQ(0U, Facts(reader).readers_reaped);
  ls_stage_close(writer, 0);
  EXPECT_EQ(-LS_STAGE_END, Next(reader));
  ls_stage_detach(reader);
}

}  // namespace
}  // namespace lockstep::stage
