// A stream in a folder of its own, for tests: steps that tell themselves whether they are whole, and that nothing is
// left.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_limit.h"
#include "lockstep/stage/stage.h"
#include "lockstep/stage/stream.h"

namespace lockstep::stage {

inline constexpr int64_t kShape[] = {4, 2};

inline ls_stage_options Options(int policy, uint32_t k) {
  return {.policy = policy, .k = k, .spare = 0, .readers = 0, .seed = 1, .spill = nullptr};
}

// A child that runs `body` and can be killed at the point where it calls Stop().
class Child {
 public:
  explicit Child(const std::function<void(Child&)>& body) {
    EXPECT_EQ(0, pipe(ready_));
    pid_ = fork();
    if (pid_ != 0) {
      char byte;
      close(ready_[1]);  // one that ends before it is ready is a failure, and no wait for ever
      EXPECT_EQ(1, read(ready_[0], &byte, 1));
      return;
    }
    body(*this);
    _exit(0);
  }
  ~Child() {
    Kill();
    close(ready_[0]);
  }
  void Ready() {  // in the child
    if (write(ready_[1], "x", 1) != 1) _exit(1);
  }
  void Stop() {
    Ready();
    for (;;) pause();
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  int ready_[2];
  pid_t pid_;
};

class Stream : public ::testing::Test {
 protected:
  Stream() { setenv("LOCKSTEP_STAGE_DIR", (folder_ / "room").c_str(), 1); }
  ~Stream() override { EXPECT_FALSE(std::filesystem::exists(folder_ / "room")) << "something is left in it"; }
  ls_stage* Open(const ls_stage_options& how, int rank = 0, int ranks = 1) {
    ls_stage* stream = nullptr;
    EXPECT_EQ(LS_STAGE_OK, ls_stage_open("s", rank, ranks, LS_STAGE_F32, 2, kShape, &how, 1, &stream))
        << ls_stage_last_error();
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
  // How many steps of memory are taken, and by how many readers in all.
  static std::pair<int, int> Taken(ls_stage* stream) {
    std::pair<int, int> taken;
    ls_stream_lock(stream, ls_stage_deadline(60));
    for (uint32_t i = 0; i < stream->head->slots; ++i) {
      taken.first += stream->slots[i].state != LS_SLOT_FREE;
      taken.second += std::popcount(stream->slots[i].held);
    }
    ls_stream_unlock(stream);
    return taken;
  }
  // Waits until it holds.
  static bool Comes(const std::function<bool()>& condition) {
    const int64_t deadline = ls_stage_deadline(60);
    while (!condition()) {
      if (ls_stage_now_ns() > deadline) return false;
    }
    return true;
  }
  static double Seconds(const std::function<void()>& body) {
    const int64_t begin = ls_stage_now_ns();
    body();
    return static_cast<double>(ls_stage_now_ns() - begin) * 1e-9;
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
  const TestFolder folder_;
};

}  // namespace lockstep::stage
