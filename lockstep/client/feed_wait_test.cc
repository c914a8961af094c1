#include "lockstep/client/feed_wait.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/record/trail.h"

namespace {

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Longer than that has passed by the clock that waits are measured with.
void Pass(int64_t ns) {
  for (const int64_t end = NowNs() + ns; NowNs() < end;) {
  }
}

constexpr int64_t kMs = 1'000'000;

class FeedWait : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("LOCKSTEP_TRAILS", folder_.path().c_str(), 1);
    setenv("RANK", "3", 1);
    unsetenv("WORLD_SIZE");
  }

  FeedWait() : memory_(LS_FEED_ALIGN + 4096) {
    ring()->slot_stride = 4096;
    ring()->slots = 1;
  }
  ls_feed_ring* ring() { return reinterpret_cast<ls_feed_ring*>(memory_.data()); }
  ls_feed_batch* batch() { return reinterpret_cast<ls_feed_batch*>(memory_.data() + LS_FEED_ALIGN); }

  static size_t Trails() {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }
  // Of this process: what is under way, and what was pushed.
  static std::pair<std::vector<ls_record>, std::vector<ls_record>> Told() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const int fd = open(entry.path().c_str(), O_RDONLY);
      struct stat info{};
      fstat(fd, &info);
      void* memory = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
      close(fd);
      const ls_trail* trail = ls_trail_attach(memory, static_cast<size_t>(info.st_size));
      if (trail == nullptr || trail->origin.pid != static_cast<uint32_t>(getpid())) continue;
      EXPECT_STREQ("feed", trail->origin.source);
      EXPECT_EQ(3U, trail->origin.rank);
      EXPECT_EQ(8U, trail->origin.world);
      std::vector<ls_record> under_way(LS_TRAIL_PLACES), ended(64);
      under_way.resize(ls_trail_under_way(trail, under_way.data()));
      uint64_t at = 0, missed = 0;
      ended.resize(ls_trail_read(trail, &at, &missed, ended.data(), ended.size()));
      munmap(memory, static_cast<size_t>(info.st_size));
      return {under_way, ended};
    }
    return {};
  }
  static int64_t Ns(const ls_record& record, uint32_t delta) { return ls_delta_ns(delta, record.delta_shift); }

  static inline const lockstep::TestFolder folder_;
  alignas(4096) std::vector<char> memory_;
};

TEST_F(FeedWait, IsSeenWhileItLastsAndTellsItsPartsAfterwards) {
  ls_feed_wait wait;
  ls_feed_wait_begin(&wait, "photos", -1, 8);
  const auto [under_way, before] = Told();
  ASSERT_EQ(1U, under_way.size());
  EXPECT_EQ(LS_RECORD_DATA, under_way.front().kind);
  EXPECT_STREQ("photos", under_way.front().body.data.data_set);

  // Begun long ago, so all of the wait lies in it: of 10 ms of work of two threads, 6 went into decoding this batch, 2
  // into reading it.
  batch()->began_ns = NowNs() - 100 * kMs;
  batch()->filled_ns = batch()->began_ns + 20 * kMs;
  batch()->read_ns = 2 * kMs;
  batch()->decode_ns = 6 * kMs;
  batch()->busy_ns = 10 * kMs;
  batch()->threads = 2;
  Pass(5 * kMs);
  ls_feed_wait_end(&wait, ring(), 0);

  const auto [none, ended] = Told();
  EXPECT_TRUE(none.empty());
  ASSERT_EQ(before.size() + 1, ended.size());
  const ls_record& record = ended.back();
  const ls_data_body& body = record.body.data;
  EXPECT_EQ(3U, body.rank);
  EXPECT_EQ(1U, body.waits);
  EXPECT_EQ(2U, body.threads);
  EXPECT_EQ(25U, body.busy);
  EXPECT_EQ(0U, body.gone);
  const int64_t waited = record.time_ns - under_way.front().time_ns;
  EXPECT_GE(waited, 5 * kMs);
  EXPECT_NEAR(static_cast<double>(waited) * 0.6, static_cast<double>(Ns(record, body.decode)), 10);
  EXPECT_NEAR(static_cast<double>(waited) * 0.2, static_cast<double>(Ns(record, body.read)), 10);
  EXPECT_NEAR(static_cast<double>(waited) * 0.2, static_cast<double>(Ns(record, body.behind)), 10);
}

TEST_F(FeedWait, WhatPassedWithoutAServiceIsTold) {
  ls_feed_wait wait;
  ls_feed_wait_begin(&wait, "a name that does not fit into the record", -1, 8);
  ls_feed_wait_gone(&wait);
  ls_feed_wait_gone(&wait);
  Pass(4 * kMs);
  ls_feed_wait_joined(&wait);
  ls_feed_wait_joined(&wait);
  batch()->began_ns = NowNs();
  batch()->decode_ns = batch()->busy_ns = 7;
  Pass(2 * kMs);
  ls_feed_wait_end(&wait, ring(), 0);
  const ls_record record = Told().second.back();
  const ls_data_body& body = record.body.data;
  EXPECT_STREQ("a name that doe", body.data_set);
  EXPECT_GE(Ns(record, body.gone), 4 * kMs);
  EXPECT_GE(Ns(record, body.decode), 2 * kMs);
  EXPECT_EQ(0U, body.read);
}

TEST_F(FeedWait, TheScriptsOwnFunctionsAreTold) {
  ls_feed_functions_ran("photos", -1, 8, 7 * kMs);
  const ls_record record = Told().second.back();
  const ls_data_body& body = record.body.data;
  EXPECT_EQ(0U, body.waits);
  EXPECT_EQ(7 * kMs, Ns(record, body.own));
  EXPECT_EQ(0U, body.behind);
}

TEST_F(FeedWait, WhatIsPassedOnFromAnotherMachineIsTold) {
  ls_feed_wait wait;
  ls_feed_wait_begin(&wait, "photos", -1, 8);
  batch()->relayed = 1;
  ls_feed_wait_end(&wait, ring(), 0);
  EXPECT_EQ(1U, Told().second.back().body.data.relayed);
}

TEST_F(FeedWait, InVainItIsToldToo) {
  ls_feed_wait wait;
  ls_feed_wait_begin(&wait, "photos", -1, 8);
  Pass(kMs);
  ls_feed_wait_end(&wait, nullptr, -1);
  const auto [under_way, ended] = Told();
  EXPECT_TRUE(under_way.empty());
  EXPECT_GE(Ns(ended.back(), ended.back().body.data.behind), kMs);
  ls_feed_wait_end(&wait, nullptr, -1);  // again: nothing
  EXPECT_EQ(ended.size(), Told().second.size());
}

TEST_F(FeedWait, AChildHasATrailOfItsOwn) {
  ls_feed_wait wait;
  ls_feed_wait_begin(&wait, "photos", -1, 8);
  ls_feed_wait_end(&wait, nullptr, -1);
  const size_t before = Trails();
  const pid_t child = fork();
  if (child == 0) {
    ls_feed_wait own;
    ls_feed_wait_begin(&own, "photos", -1, 8);
    ls_feed_wait_end(&own, nullptr, -1);
    _exit(Told().second.size() == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(before + 1, Trails());
}

}  // namespace
