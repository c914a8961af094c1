#include "lockstep/record/ring.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace {

ls_record Step(int64_t step, uint16_t more = 0) {
  ls_record record{};
  record.kind = LS_RECORD_STEP;
  record.more = more;
  record.body.step.step = step;
  return record;
}

// A ring of `capacity` cells that a forked child shares.
class SharedRing {
 public:
  explicit SharedRing(uint32_t capacity) : bytes_(ls_ring_bytes(capacity)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_TRUE(ls_ring_format(memory_, bytes_));
  }
  ~SharedRing() { munmap(memory_, bytes_); }
  ls_ring* get() { return ls_ring_attach(memory_, bytes_); }

 private:
  size_t bytes_;
  void* memory_;
};

TEST(Ring, DropsAndCountsWhenFullThenGoesOn) {
  SharedRing shared(4);
  ls_ring* ring = shared.get();
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(ls_ring_push(ring, std::vector{Step(i)}.data()), i < 4);
  EXPECT_EQ(ring->dropped, 2u);
  std::vector<ls_record> cells(8);
  ASSERT_EQ(ls_ring_pop(ring, cells.data(), cells.size()), 4u);
  EXPECT_EQ(cells[3].body.step.step, 3);
  EXPECT_TRUE(ls_ring_push(ring, std::vector{Step(9)}.data()));
  EXPECT_EQ(ls_ring_pop(ring, cells.data(), cells.size()), 1u);
}

TEST(Ring, NeverSplitsARecordFromItsCells) {
  SharedRing shared(8);
  ls_ring* ring = shared.get();
  const std::vector<ls_record> three = {Step(1, 2), Step(-1), Step(-1)};
  EXPECT_TRUE(ls_ring_push(ring, three.data()));
  EXPECT_TRUE(ls_ring_push(ring, three.data()));
  EXPECT_FALSE(ls_ring_push(ring, three.data())) << "only two cells are free";
  std::vector<ls_record> cells(5);
  EXPECT_EQ(ls_ring_pop(ring, cells.data(), cells.size()), 3u) << "the second would not fit whole";
  EXPECT_EQ(ls_ring_pop(ring, cells.data(), cells.size()), 3u);
  EXPECT_EQ(cells[0].body.step.step, 1);
}

TEST(Ring, SkipsWhatIsTooLongForTheReaderAndRepairsNonsense) {
  SharedRing shared(8);
  ls_ring* ring = shared.get();
  const std::vector<ls_record> three = {Step(1, 2), Step(-1), Step(-1)};
  ls_ring_push(ring, three.data());
  std::vector<ls_record> cells(2);
  EXPECT_EQ(ls_ring_pop(ring, cells.data(), cells.size()), 0u);
  EXPECT_EQ(ring->skipped, 3u);
  ring->head += 1000;  // a worker that scribbles
  EXPECT_EQ(ls_ring_pop(ring, cells.data(), cells.size()), 0u);
  EXPECT_EQ(ring->skipped, 3u + 8u);
  EXPECT_TRUE(ls_ring_push(ring, std::vector{Step(5)}.data()));
  EXPECT_EQ(ls_ring_pop(ring, cells.data(), cells.size()), 1u);
}

TEST(Ring, AttachRefusesWhatIsNoRing) {
  std::vector<uint64_t> memory(64);
  EXPECT_EQ(ls_ring_attach(memory.data(), memory.size() * 8), nullptr);
  EXPECT_FALSE(ls_ring_format(memory.data(), ls_ring_bytes(1) - 1));
  ASSERT_TRUE(ls_ring_format(memory.data(), memory.size() * 8));
  EXPECT_EQ(ls_ring_attach(memory.data(), memory.size() * 8)->capacity, 4u);  // (512 - 192) / 64 = 5, rounded down
  EXPECT_EQ(ls_ring_attach(memory.data(), 300), nullptr) << "shorter than its header says";
}

TEST(Ring, OrderHoldsBetweenThreads) {
  SharedRing shared(64);
  constexpr int64_t kCount = 200'000;
  std::jthread producer([ring = shared.get()] {
    for (int64_t i = 0; i < kCount;) {
      const ls_record record = Step(i);
      if (ls_ring_push(ring, &record)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  std::vector<ls_record> cells(32);
  for (int64_t expected = 0; expected < kCount;) {
    const size_t count = ls_ring_pop(shared.get(), cells.data(), cells.size());
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(cells[i].body.step.step, expected++);
    if (count == 0) std::this_thread::yield();
  }
}

// 50 producers in turn, each killed somewhere in its pushes: the consumer sees whole records in order, and the next one
// goes on.
TEST(Ring, SurvivesProducersKilledAnywhere) {
  SharedRing shared(16);
  std::vector<ls_record> cells(16);
  for (int generation = 0; generation < 50; ++generation) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t i = 0;; ++i) {
        const ls_record three[] = {Step(i, 2), Step(i), Step(i)};
        ls_ring_push(shared.get(), three);
      }
    }
    for (int records = 0; records < 20;) {
      const size_t count = ls_ring_pop(shared.get(), cells.data(), cells.size());
      for (size_t i = 0; i < count; i += 3, ++records) {
        ASSERT_EQ(cells[i].more, 2);
        ASSERT_EQ(cells[i + 1].body.step.step, cells[i].body.step.step);
        ASSERT_EQ(cells[i + 2].body.step.step, cells[i].body.step.step);
      }
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(shared.get()->skipped, 0u);
}

TEST(Delta, PicksTheSmallestShift) {
  EXPECT_EQ(ls_delta_shift(4'294'967'295), 0);
  EXPECT_EQ(ls_delta_shift(4'294'967'296), 1);
  EXPECT_EQ(ls_delta_ns(ls_delta(9'000'000'000, 2), 2), 9'000'000'000);
}

}  // namespace
