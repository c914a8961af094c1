#include "lockstep/client/client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/client/commit.h"
#include "lockstep/client/fake_starter.h"
#include "lockstep/client/starter.h"

namespace lockstep::client {
namespace {

class Client : public testing::Test {
 protected:
  void SetUp() override { starter_.StartEpoch(1); }
  void TearDown() override {
    ls_leave(client_);
    for (const char* name : {"LOCKSTEP_RUN", "LOCKSTEP_RANK", "LOCKSTEP_EPOCH"}) unsetenv(name);
  }
  void Join() {
    client_ = ls_join();
    ASSERT_NE(client_, nullptr) << ls_last_error();
  }
  void NextEpoch(uint64_t epoch, uint64_t restore_epoch, int64_t restore_step) {
    ls_leave(client_);
    starter_.StartEpoch(epoch, restore_epoch, restore_step);
    Join();
  }
  // One tensor at once, one by the copy thread, both filled with the step.
  int Save(int64_t step) {
    eager_.assign(100, static_cast<char>(step));
    lazy_.assign(100'000, static_cast<char>(step + 1));
    const std::string meta = "meta " + std::to_string(step);
    const int result = ls_save_begin(client_, step, meta.data(), meta.size());
    if (result != LS_OK) return result;
    ls_save_add_now(client_, LS_DEVICE_CPU, eager_.data(), eager_.size());
    ls_save_add(client_, LS_DEVICE_CPU, lazy_.data(), lazy_.size());
    return ls_save_submit(client_);
  }
  int Restore() { return ls_restore_point(client_, 10, &step_, &meta_, &meta_bytes_, &tensors_, &tensor_bytes_); }
  ls_rank_block& block() { return starter_.board()->rank[0]; }

  FakeStarter starter_{1};
  ls_client* client_ = nullptr;
  std::vector<char> eager_, lazy_;
  int64_t step_ = -1;
  const void* meta_ = nullptr;
  const void* tensors_ = nullptr;
  uint64_t meta_bytes_ = 0, tensor_bytes_ = 0;
};

TEST(ClientAlone, IsNotJoinedWithoutARun) {
  unsetenv("LOCKSTEP_RUN");
  EXPECT_EQ(ls_join(), nullptr);
  EXPECT_STREQ(ls_last_error(), "");
  ls_step(nullptr, 1, 0);
  ls_save_spoil(nullptr);
  EXPECT_EQ(ls_save_begin(nullptr, 0, "", 0), LS_NOT_JOINED);
  EXPECT_EQ(ls_save_wait(nullptr), LS_NOT_JOINED);
}

TEST_F(Client, SaysWhyItCannotJoin) {
  setenv("LOCKSTEP_EPOCH", "x", 1);
  EXPECT_EQ(ls_join(), nullptr);
  EXPECT_STREQ(ls_last_error(), "LOCKSTEP_RUN is set, but LOCKSTEP_EPOCH is not a number above 0");
  starter_.StartEpoch(1, 0, -1, /*rank=*/3);
  EXPECT_EQ(ls_join(), nullptr);
  EXPECT_STREQ(ls_last_error(), "rank 3 does not fit on a board of the 1 ranks from 0 on");
  starter_.refusal = "no such job";
  EXPECT_EQ(ls_join(), nullptr);
  EXPECT_STREQ(ls_last_error(), "no such job");
  setenv("LOCKSTEP_RUN", "/nonexistent", 1);
  EXPECT_EQ(ls_join(), nullptr);
  EXPECT_STREQ(ls_last_error(), "/nonexistent/worker.sock: No such file or directory");
}

TEST_F(Client, TheRecordOfAStepTellsWhatTheScriptWasAt) {
  Join();
  ls_loop_begin(client_, -1);
  const auto spend = [](int ms) { usleep(static_cast<useconds_t>(ms) * 1000); };
  spend(1);
  ls_mark(client_, LS_PART_FORWARD);
  spend(2);
  ls_mark(client_, LS_PART_BACKWARD);
  spend(4);
  ls_mark(client_, LS_PART_OPTIMIZER);
  spend(2);
  ls_mark(client_, LS_PART_OTHER);
  ls_mark(client_, 17);
  ls_mark(nullptr, LS_PART_DATA);
  ls_step(client_, 0, NAN);
  ls_step(client_, 1, NAN);
  ls_record records[2];
  ASSERT_EQ(ls_ring_pop(starter_.ring(), records, 2), 2u);
  const ls_step_body& step = records[0].body.step;
  EXPECT_GE(step.data, 1'000'000u);
  EXPECT_GE(step.forward, 2'000'000u);
  EXPECT_GE(step.backward, 4'000'000u);
  EXPECT_GE(step.optimizer, 2'000'000u);
  EXPECT_LE(step.data + step.forward + step.backward + step.optimizer, step.duration);
  EXPECT_EQ(records[1].body.step.forward, 0u);
}

TEST_F(Client, StepClockAndRecords) {
  Join();
  EXPECT_EQ(block().pid, getpid());
  EXPECT_EQ(block().phase, static_cast<uint64_t>(LS_PHASE_STARTED));
  ls_loop_begin(client_, 6);
  EXPECT_EQ(block().step, 6);
  ls_step(client_, 7, 0.5);
  EXPECT_EQ(block().step, 7);
  EXPECT_EQ(block().phase, static_cast<uint64_t>(LS_PHASE_STEPPING));
  EXPECT_EQ(block().step_end_ns, block().loop_begin_ns + block().step_time_ns);
  EXPECT_EQ(block().steps, 1);
  ls_record record;
  ASSERT_EQ(ls_ring_pop(starter_.ring(), &record, 1), 1u);
  EXPECT_EQ(record.body.step.step, 7);
  EXPECT_EQ(record.body.step.loss, 0.5);
  EXPECT_EQ(record.time_ns, block().step_end_ns);
  EXPECT_EQ(record.body.step.forward, 0u) << "nobody marked anything";
  for (int64_t step = 8; step < 8 + 20; ++step) ls_step(client_, step, NAN);
  EXPECT_EQ(block().steps, 21);
  EXPECT_EQ(block().dropped, 4u) << "the ring holds 16";
  ls_step(client_, 28, 0.25);
  ls_step(client_, 29, INFINITY);
  EXPECT_EQ(block().first_finite - 1, 7);
  EXPECT_EQ(block().newest_finite - 1, 28);
}

TEST_F(Client, SavesAndRestores) {
  Join();
  EXPECT_EQ(Restore(), LS_FRESH);
  ASSERT_EQ(ls_buffers(client_, 200'000), LS_OK) << ls_last_error();
  for (int64_t step = 0; step < 5; ++step) {
    ASSERT_EQ(Save(step), LS_OK) << ls_last_error();
    ASSERT_EQ(ls_save_wait(client_), LS_OK);
    ASSERT_TRUE(ls_committed(starter_.board(), {1, step}));
  }
  EXPECT_EQ(block().copies, 5u);

  NextEpoch(2, 1, 3);
  ASSERT_EQ(Restore(), LS_OK) << ls_last_error();
  EXPECT_EQ(step_, 3);
  EXPECT_EQ(std::string(static_cast<const char*>(meta_), meta_bytes_), "meta 3");
  const char* tensors = static_cast<const char*>(tensors_);
  ASSERT_EQ(tensor_bytes_, 128u + 100'000u) << "100 bytes, zeros to the next multiple of 64, 100,000 bytes";
  EXPECT_EQ(tensors[99], 3);
  EXPECT_EQ(tensors[100], 0);
  EXPECT_EQ(tensors[128], 4);
  EXPECT_EQ(tensors[128 + 99'999], 4);
  EXPECT_EQ(ls_slot_capacity(client_), 200'000u) << "as it was made, not as much as the save took";
}

TEST_F(Client, GrownBuffersKeepWhatWasCommitted) {
  Join();
  ls_buffers(client_, 200'000);
  ASSERT_EQ(Save(0), LS_OK);
  ASSERT_EQ(ls_buffers(client_, 900'000), LS_OK) << ls_last_error();
  NextEpoch(2, 1, 0);
  EXPECT_EQ(Restore(), LS_OK) << ls_last_error();
}

TEST_F(Client, FlippedBitIsFoundAndTheSlotIsBad) {
  Join();
  ls_buffers(client_, 200'000);
  ASSERT_EQ(Save(0), LS_OK);
  ls_save_wait(client_);
  starter_.slot(0)[5000] ^= 1;
  NextEpoch(2, 1, 0);
  EXPECT_EQ(Restore(), LS_CORRUPT);
  EXPECT_EQ(block().slot[0].state, static_cast<uint64_t>(LS_SLOT_BAD));
  EXPECT_THAT(ls_last_error(), testing::StartsWith("rank 0: the checkpoint of step 0 is corrupt: CRC 0x"));
}

// Each of them, also those that the copy thread made while the sources of the next one were filled.
TEST_F(Client, AHundredAndTwentySavesAreAsManyStates) {
  Join();
  ls_buffers(client_, 200'000);
  std::set<std::string> contents;
  for (int64_t step = 0; step < 120; ++step) {
    ASSERT_EQ(Save(step), LS_OK) << ls_last_error();
    ASSERT_EQ(ls_save_wait(client_), LS_OK);
    const int index = ls_slot_find(&block(), {1, step});
    ASSERT_GE(index, 0);
    const ls_slot& slot = block().slot[index];
    const std::string content(starter_.slot(index), slot.bytes);
    const std::string meta = "meta " + std::to_string(step);
    ASSERT_EQ(content.substr(0, meta.size()), meta);
    ASSERT_EQ(content.substr(64, eager_.size()), std::string(eager_.begin(), eager_.end()));
    ASSERT_EQ(content.substr(192), std::string(lazy_.begin(), lazy_.end()));
    ASSERT_EQ(slot.crc32c, ls_crc32c(0, content.data(), content.size()));
    ASSERT_EQ(slot.proof, ls_proof(1, step, content.data(), content.size()));
    contents.insert(content);
  }
  EXPECT_EQ(contents.size(), 120u);
}

// A write that comes before the copy, or into the middle of it, past whatever torch counts.
TEST_F(Client, WhatIsWrittenBeforeItIsCopiedIsThrownAway) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it is a race, on purpose";
#endif
  Join();
  ls_buffers(client_, 200'000);
  uint64_t stale = 0;
  for (int64_t step = 0; step < 100; ++step) {
    ASSERT_EQ(Save(step), LS_OK);
    const char was = lazy_.front();
    lazy_.assign(lazy_.size(), static_cast<char>(was + 50));
    const int result = ls_save_wait(client_);
    const int index = ls_slot_find(&block(), {1, step});
    if (result == LS_STALE) {
      ++stale;
      EXPECT_LT(index, 0);
    } else {  // the copy thread was faster
      ASSERT_EQ(result, LS_OK);
      ASSERT_GE(index, 0);
      const char* copy = starter_.slot(index) + 192;
      EXPECT_EQ(std::count(copy, copy + lazy_.size(), was), static_cast<std::ptrdiff_t>(lazy_.size()));
    }
  }
  EXPECT_GT(stale, 0u);
  EXPECT_EQ(block().torn, stale);
}

// As share_memory_() does, and storage().resize_(): what was committed before stays, and the next save is whole.
TEST_F(Client, MemoryThatIsUnmappedUnderTheCopySpoilsThatCheckpointOnly) {
  constexpr size_t kBytes = 32 << 20;
  Join();
  ASSERT_EQ(ls_buffers(client_, kBytes + 1000), LS_OK);
  ASSERT_EQ(Save(0), LS_OK);
  ASSERT_EQ(ls_save_wait(client_), LS_OK);
  int64_t step = 0;
  int result = LS_OK;
  while (result == LS_OK && step < 100) {  // else the copy thread was faster
    char* source =
        static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(source, MAP_FAILED);
    ASSERT_EQ(ls_save_begin(client_, ++step, "m", 1), LS_OK);
    ASSERT_EQ(ls_save_add(client_, LS_DEVICE_CPU, source, kBytes), LS_OK);
    ASSERT_EQ(ls_save_submit(client_), LS_OK);
    munmap(source + kBytes / 2, kBytes / 2);
    result = ls_save_wait(client_);
    munmap(source, kBytes / 2);
  }
  EXPECT_EQ(result, LS_STALE);
  EXPECT_EQ(block().torn, 1u);
  EXPECT_LT(ls_slot_find(&block(), {1, step}), 0);
  EXPECT_TRUE(ls_committed(starter_.board(), {1, step - 1}));
  ASSERT_EQ(Save(step + 1), LS_OK);
  ASSERT_EQ(ls_save_wait(client_), LS_OK);
  EXPECT_TRUE(ls_committed(starter_.board(), {1, step + 1}));
}

// It would have a priority so low that a rank that is killed dies late.
TEST_F(Client, NoThreadWaitsForTheNextSave) {
  const auto copiers = [] {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);  // nothing of one that has ended meanwhile
      count += name == "lockstep-copy" ? 1 : 0;
    }
    return count;
  };
  Join();
  ASSERT_EQ(ls_buffers(client_, 200'000), LS_OK);
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_EQ(Save(step), LS_OK);
    ASSERT_EQ(ls_save_wait(client_), LS_OK);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (copiers() > 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_EQ(copiers(), 0);
  }
}

TEST_F(Client, WhatWasSavedBeforeTheLossBecameNoNumberIsNotGivenUp) {
  Join();
  ls_buffers(client_, 200'000);
  ls_loop_begin(client_, -1);
  const auto step = [this](int64_t number, double loss) {
    ls_step(client_, number, loss);
    const int result = Save(number);
    ls_save_wait(client_);
    return result;
  };
  const auto held = [this] { return std::set<int64_t>{block().slot[0].step, block().slot[1].step}; };
  EXPECT_EQ(step(0, INFINITY), LS_OK);  // nothing was finite before, so nothing from before is better
  EXPECT_EQ(step(1, 0.5), LS_OK);
  EXPECT_EQ(step(2, 0.5), LS_OK);
  EXPECT_EQ(step(3, INFINITY), LS_SKIPPED);
  EXPECT_EQ(step(4, NAN), LS_SKIPPED);  // none told: as at the step before
  EXPECT_EQ(block().skipped, 2);
  EXPECT_THAT(held(), testing::ElementsAre(1, 2));
  EXPECT_EQ(step(5, 0.5), LS_OK);
  EXPECT_EQ(step(6, NAN), LS_OK);
  EXPECT_THAT(held(), testing::ElementsAre(5, 6));
}

TEST_F(Client, AStateOfAnotherStepIsNotRestored) {
  Join();
  ls_buffers(client_, 200'000);
  ASSERT_EQ(Save(0), LS_OK);
  ls_save_wait(client_);
  block().slot[0].step = 1;  // and its CRC is that of its content
  NextEpoch(2, 1, 1);
  EXPECT_EQ(Restore(), LS_CORRUPT);
  EXPECT_STREQ(ls_last_error(), "rank 0: what stands under step 1 is not its state: the proof of freshness differs");
  EXPECT_EQ(block().slot[0].state, static_cast<uint64_t>(LS_SLOT_BAD));
}

TEST_F(Client, RefusesAnotherWorldSizeAndWhatItDoesNotHold) {
  Join();
  ls_buffers(client_, 200'000);
  Save(0);
  ls_save_wait(client_);
  block().slot[0].world_size = 8;
  NextEpoch(2, 1, 0);
  EXPECT_EQ(Restore(), LS_REFUSED);
  EXPECT_STREQ(ls_last_error(),
               "the checkpoint of step 0 was written by 8 ranks, but this job has 1: start it with 8 ranks, or afresh");
  NextEpoch(3, 1, 9);
  EXPECT_EQ(Restore(), LS_REFUSED);
  EXPECT_STREQ(ls_last_error(), "rank 0 holds no checkpoint of step 9 (epoch 1)");
}

TEST_F(Client, WaitsForTheRestorePointOnlySoLong) {
  Join();
  starter_.board()->restore_for = 0;
  EXPECT_EQ(ls_restore_point(client_, 0.001, &step_, &meta_, &meta_bytes_, &tensors_, &tensor_bytes_), LS_TIMEOUT);
  starter_.board()->epoch = 2;
  EXPECT_EQ(Restore(), LS_REFUSED);
  EXPECT_STREQ(ls_last_error(), "epoch 1 is over");
}

TEST_F(Client, StaleWriterStops) {
  Join();
  ls_buffers(client_, 200'000);
  ASSERT_EQ(ls_save_begin(client_, 0, "m", 1), LS_OK);
  starter_.board()->epoch = 2;
  EXPECT_EQ(ls_save_submit(client_), LS_REFUSED) << "the epoch ended between begin and DONE";
  EXPECT_EQ(block().slot[0].state, static_cast<uint64_t>(LS_SLOT_WRITING));
  EXPECT_EQ(Save(1), LS_REFUSED);
  ls_step(client_, 5, NAN);
  EXPECT_EQ(block().step, -1);
}

TEST_F(Client, SpoiltCopyIsNeverDone) {
  Join();
  ls_buffers(client_, 200'000);
  ASSERT_EQ(Save(0), LS_OK);
  ls_save_spoil(client_);
  EXPECT_EQ(block().slot[0].state, static_cast<uint64_t>(LS_SLOT_EMPTY));
  EXPECT_EQ(block().torn, 1u);
  ASSERT_EQ(Save(1), LS_OK);
  ASSERT_EQ(ls_save_wait(client_), LS_OK);
  EXPECT_TRUE(ls_committed(starter_.board(), {1, 1}));
}

TEST_F(Client, RefusesWhatDoesNotFitAndGoesOn) {
  Join();
  EXPECT_EQ(Save(0), LS_REFUSED) << "no buffers yet";
  ls_buffers(client_, 1000);
  ASSERT_EQ(ls_save_begin(client_, 1, "m", 1), LS_OK);
  const std::vector<char> big(2000);
  EXPECT_EQ(ls_save_add_now(client_, LS_DEVICE_CPU, big.data(), big.size()), LS_REFUSED);
  EXPECT_EQ(ls_save_submit(client_), LS_SKIPPED) << "nothing is open any more";
  EXPECT_EQ(block().slot[0].state, static_cast<uint64_t>(LS_SLOT_EMPTY));
  starter_.refusal = "4 ranks x 2 slots x 1.2 GB do not fit";
  EXPECT_EQ(ls_buffers(client_, 1 << 20), LS_REFUSED);
  EXPECT_STREQ(ls_last_error(), "4 ranks x 2 slots x 1.2 GB do not fit");
  starter_.refusal.clear();
  ls_buffers(client_, 1 << 20);
  EXPECT_EQ(Save(2), LS_OK);
}

TEST_F(Client, ASaveBegunButNotSubmittedIsForgotten) {
  Join();
  ls_buffers(client_, 200'000);
  ASSERT_EQ(ls_save_begin(client_, 0, "m", 1), LS_OK);
  ASSERT_EQ(Save(1), LS_OK);
  ls_save_wait(client_);
  EXPECT_TRUE(ls_committed(starter_.board(), {1, 1}));
  EXPECT_EQ(Save(1), LS_SKIPPED) << "a step is saved once";
  EXPECT_EQ(block().skipped, 1u);
}

// A file of this size on a file system of one megabyte; -1: this process may not mount one.
int FileThatDoesNotFit(uint64_t bytes) {
  int file = -1;
  std::thread([&] {  // has mounts of its own from here on
    if (unshare(CLONE_NEWNS) != 0) return;
    const std::string folder = testing::TempDir();
    if (mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
    if (mount("small", folder.c_str(), "tmpfs", 0, "size=1m") != 0) return;
    file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) close(std::exchange(file, -1));
  })
      .join();
  return file;
}

// Where the kernel gives no more memory, a copy into pages that are not there would end the process (SIGBUS).
TEST_F(Client, BuffersForWhichThereIsNoMemoryAreRefused) {
  const int file = FileThatDoesNotFit(4 << 20);
  if (file < 0) GTEST_SKIP() << "needs the right to mount";
  Join();
  starter_.own_slots = {file, file};
  starter_.own_bytes = 4 << 20;
  EXPECT_EQ(ls_buffers(client_, 4 << 20), LS_REFUSED);
  EXPECT_STREQ(ls_last_error(),
               "the kernel has no memory for 4194304 bytes of checkpoint buffers: No space left on device; see "
               "vm.overcommit_memory");
  EXPECT_EQ(ls_slot_capacity(client_), 0u);
  EXPECT_EQ(Save(0), LS_REFUSED);
  // What fits is had all the same, though the starter has larger ones by now: a restart needs it.
  EXPECT_EQ(ls_buffers(client_, 200'000), LS_OK) << ls_last_error();
  // And what was reserved of a slot is given back where the other one has no room.
  const int ample = memfd_create("ample", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(ample, 4 << 20), 0);
  starter_.own_slots = {ample, file};
  EXPECT_EQ(ls_buffers(client_, 4 << 20), LS_REFUSED);
  struct stat info;
  ASSERT_EQ(fstat(ample, &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  close(ample);
  starter_.own_slots.clear();
  EXPECT_EQ(ls_buffers(client_, 1 << 20), LS_OK) << ls_last_error();
  EXPECT_EQ(Save(1), LS_OK);
  close(file);
}

// Eager sources behind queued ones: the CRC still runs in order.
TEST_F(Client, AnyOrderOfEagerAndQueuedTensors) {
  Join();
  ls_buffers(client_, 200'000);
  const std::vector<char> a(5000, 'a'), b(70, 'b');
  const void* sources[] = {a.data(), b.data()};
  const uint64_t bytes[] = {a.size(), b.size()};
  ASSERT_EQ(ls_save_begin(client_, 0, "meta", 4), LS_OK);
  ls_save_add_many(client_, LS_DEVICE_CPU, sources, bytes, 2);
  ls_save_add_now(client_, LS_DEVICE_CPU, b.data(), b.size());
  ls_save_add(client_, LS_DEVICE_CPU, nullptr, 0);
  ASSERT_EQ(ls_save_submit(client_), LS_OK);
  ASSERT_EQ(ls_save_wait(client_), LS_OK);
  NextEpoch(2, 1, 0);
  ASSERT_EQ(Restore(), LS_OK) << ls_last_error();
  EXPECT_EQ(static_cast<const char*>(tensors_)[ls_align(a.size()) + 128], 'b');
}

// A script may close what it does not know, and have files of its own under such numbers.
TEST(ClientAlone, AFileUnderTheNumberOfTheSocketIsLeftAlone) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  ls_starter starter = ls_starter_of(ends[0]);
  const int file = memfd_create("the script's", MFD_CLOEXEC);
  ASSERT_EQ(dup2(file, ends[0]), ends[0]);
  ls_join_message request{};
  ls_answer answer;
  EXPECT_EQ(ls_starter_ask(&starter, &request, &answer, 100), ENOTCONN);
  ls_starter_close(&starter);
  EXPECT_EQ(write(ends[0], "1", 1), 1);
  for (const int fd : {ends[0], ends[1], file}) close(fd);
}

// As the addresses of tensors that are wrapped around others.
TEST_F(Client, BytesAtNoAddressAreRefused) {
  Join();
  ls_buffers(client_, 1000);
  const void* sources[] = {nullptr};
  const uint64_t bytes[] = {12};
  int64_t step = 0;
  for (const auto add : {&ls_save_add_now, &ls_save_add}) {
    ASSERT_EQ(ls_save_begin(client_, step++, "meta", 4), LS_OK);
    EXPECT_EQ(add(client_, LS_DEVICE_CPU, nullptr, 12), LS_REFUSED);
  }
  ASSERT_EQ(ls_save_begin(client_, step, "meta", 4), LS_OK);
  EXPECT_EQ(ls_save_add_many(client_, LS_DEVICE_CPU, sources, bytes, 1), LS_REFUSED);
  EXPECT_STREQ(ls_last_error(), "a tensor has bytes and no memory: it stands for another");
}

TEST_F(Client, AStateOfNoBytesIsOneToo) {
  Join();
  ASSERT_EQ(ls_buffers(client_, 1000), LS_OK);
  ASSERT_EQ(ls_save_begin(client_, 0, nullptr, 0), LS_OK);
  ASSERT_EQ(ls_save_add(client_, LS_DEVICE_CPU, eager_.data(), 0), LS_OK);
  ASSERT_EQ(ls_save_submit(client_), LS_OK);
  EXPECT_EQ(ls_save_wait(client_), LS_OK);
}

int listening = -1;

// A profiler's signals must not keep a rank from its job.
TEST(ClientAlone, JoinsThoughSignalsInterruptIt) {
  const TestFolder run;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof address.sun_path, "%s/" LS_JOIN_SOCKET, run.path().c_str());
  listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listening, 0), 0);
  const int first =
      ls_starter_connect(run.path().c_str()).socket;  // the next one waits until this is accepted, by the handler
  ASSERT_GE(first, 0);
  struct sigaction action{}, before{};
  action.sa_handler = [](int) { close(accept(listening, nullptr, nullptr)); };
  sigaction(SIGALRM, &action, &before);
  itimerval soon{};
  soon.it_value.tv_usec = 20'000;
  setitimer(ITIMER_REAL, &soon, nullptr);
  const int second = ls_starter_connect(run.path().c_str()).socket;
  EXPECT_GE(second, 0) << strerror(errno);
  sigaction(SIGALRM, &before, nullptr);
  for (const int fd : {first, second, listening}) close(fd);
}

// Neither a signal every few milliseconds makes the limit longer, nor does a late answer become that of another
// request.
TEST(ClientAlone, AStarterThatDoesNotAnswerIsLeftAfterTheLimit) {
  static int starter = -1;
  static volatile std::sig_atomic_t ticks = 0;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  starter = ends[1];
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {
    ticks = ticks + 1;
    if (ticks == 1000) shutdown(starter, SHUT_RDWR);  // else a wait without an end would be no failure
  };
  sigaction(SIGALRM, &action, &before);
  const itimerval often{.it_interval = {0, 3000}, .it_value = {0, 3000}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  const ls_join_message request{};
  ls_answer answer;
  ls_starter own = ls_starter_of(ends[0]);
  EXPECT_EQ(ls_starter_ask(&own, &request, &answer, 100), ETIMEDOUT);
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_GT(ticks, 0);
  EXPECT_EQ(own.socket, -1);
  EXPECT_EQ(ls_starter_ask(&own, &request, &answer, 100), ENOTCONN);
  ls_join_message seen;
  EXPECT_EQ(recv(starter, &seen, sizeof seen, 0), static_cast<ssize_t>(sizeof seen));
  EXPECT_EQ(recv(starter, &seen, sizeof seen, 0), 0) << "the connection is still open";
  close(starter);
}

// A data loader's child must neither write the board nor wait for a thread that it does not have.
TEST_F(Client, AForkedChildIsNotJoined) {
  Join();
  ls_buffers(client_, 200'000);
  ls_step(client_, 3, NAN);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ls_step(client_, 9, NAN);
    ls_leave(client_);
    const bool refused = Save(4) == LS_NOT_JOINED && ls_save_wait(client_) == LS_NOT_JOINED;
    _exit(refused && ls_buffers(client_, 1) == LS_NOT_JOINED ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(block().step, 3);
  EXPECT_EQ(Save(4), LS_OK);
}

TEST_F(Client, LeavingEndsTheCopyAndSaysFinished) {
  Join();
  ls_buffers(client_, 200'000);
  ASSERT_EQ(Save(0), LS_OK);
  ls_leave(std::exchange(client_, nullptr));
  EXPECT_TRUE(ls_committed(starter_.board(), {1, 0}));
  EXPECT_EQ(block().phase, static_cast<uint64_t>(LS_PHASE_FINISHED));
}

}  // namespace
}  // namespace lockstep::client
