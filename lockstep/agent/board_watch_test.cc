#include "lockstep/agent/board_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <thread>

#include "lockstep/agent/proc.h"
#include "lockstep/client/bell.h"
#include "lockstep/client/life.h"

namespace lockstep::agent {
namespace {

using ::testing::ElementsAre;

// Blocks that parent and children share.
class Blocks {
 public:
  Blocks() : blocks_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Blocks() { munmap(blocks_, kBytes); }
  Blocks(const Blocks&) = delete;
  ls_rank_block& operator[](int rank) const { return static_cast<ls_rank_block*>(blocks_)[rank]; }

 private:
  static constexpr size_t kBytes = 4 * sizeof(ls_rank_block);
  void* blocks_;
};

// Children that take the lives of blocks. The blocks outlive the watch, which reads them until it ends.
class BoardWatchTest : public testing::Test {
 protected:
  ~BoardWatchTest() override {
    for (const pid_t pid : children_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  // Returns when the child holds its life; then it does `act`, and waits for its end.
  template <typename Act>
  pid_t Child(int rank, const Act& act) {
    const pid_t pid = fork();
    if (pid == 0) {
      ls_life_begin(&blocks_[rank]);
      raise(SIGSTOP);
      act();
      for (;;) pause();
    }
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED);
    children_.push_back(pid);
    return pid;
  }
  Life LifeOf(int rank) { return {rank, ls_life_word(&blocks_[rank])}; }
  // Runs the loop until `count` ends were told.
  void WaitFor(size_t count) {
    enough_ = count;
    poller_.Run(Seconds{0.01}, [&] {
      if (told_.size() >= enough_) poller_.Stop();
    });
  }

  Blocks blocks_;
  std::vector<pid_t> children_;
  Poller poller_;
  std::vector<int> told_;
  size_t enough_ = 0;
  int rings_ = 0;
  BoardWatch watch_{poller_, {.ends = [this](int rank) { told_.push_back(rank); }, .rings = [this] { ++rings_; }}};
};

TEST_F(BoardWatchTest, TellsAKilledProcessAndItsStatus) {
  const pid_t victim = Child(1, [] {});
  Child(2, [] {});
  watch_.Follow({LifeOf(1), LifeOf(2)});
  EXPECT_EQ(FailureBegun(victim), std::nullopt);
  kill(victim, SIGKILL);
  WaitFor(1);
  EXPECT_THAT(told_, ElementsAre(1));
  const std::optional<int> status = FailureBegun(victim);
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), SIGKILL);
}

TEST_F(BoardWatchTest, TellsAnExitCode) {
  const pid_t child = Child(0, [] { _exit(3); });
  watch_.Follow({LifeOf(0)});
  kill(child, SIGCONT);
  WaitFor(1);
  const std::optional<int> status = FailureBegun(child);
  ASSERT_TRUE(status);
  EXPECT_EQ(WEXITSTATUS(*status), 3);
}

// The thread that joined may end, and the job go on.
TEST_F(BoardWatchTest, AThreadsEndIsNoFailure) {
  ls_rank_block* block = &blocks_[0];
  std::thread([&] { ls_life_begin(block); }).join();
  watch_.Follow({LifeOf(0)});
  WaitFor(1);
  EXPECT_EQ(FailureBegun(getpid()), std::nullopt);
}

TEST_F(BoardWatchTest, ALifeGivenBackIsNotTold) {
  const pid_t calm = Child(0, [this] { EXPECT_TRUE(ls_life_end(&blocks_[0])); });
  const pid_t victim = Child(1, [] {});
  watch_.Follow({LifeOf(0), LifeOf(1)});
  kill(calm, SIGCONT);
  while (__atomic_load_n(LifeOf(0).word, __ATOMIC_ACQUIRE) != 0) std::this_thread::yield();
  kill(victim, SIGKILL);
  WaitFor(1);
  EXPECT_THAT(told_, ElementsAre(1));
}

TEST(Life, AnotherThreadCantGiveItBack) {
  ls_rank_block block{};
  ls_life_begin(&block);
  bool returned = true;
  std::thread([&] { returned = ls_life_end(&block); }).join();
  EXPECT_FALSE(returned);
  EXPECT_TRUE(ls_life_end(&block));
}

// A block whose worker died is taken by the next epoch's.
TEST_F(BoardWatchTest, TheNextEpochsLifeIsFollowedAnew) {
  kill(Child(0, [] {}), SIGKILL);
  watch_.Follow({LifeOf(0)});
  WaitFor(1);
  const pid_t second = Child(0, [] {});
  watch_.Follow({LifeOf(0)});
  kill(second, SIGKILL);
  WaitFor(2);
  EXPECT_THAT(told_, ElementsAre(0, 0));
}

TEST_F(BoardWatchTest, HearsTheBellThatAnotherProcessRings) {
  auto* board = static_cast<ls_board*>(
      mmap(nullptr, sizeof(ls_board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  watch_.Follow({}, ls_bell_word(board));
  const pid_t child = Child(1, [board] {
    for (int i = 0; i < 1000; ++i) ls_ring_bell(board);
  });
  kill(child, SIGCONT);
  poller_.Run(Seconds{0.01}, [&] {
    if (rings_ > 0) poller_.Stop();
  });
  EXPECT_LT(rings_, 100) << "not each time";
  EXPECT_THAT(told_, ElementsAre());
  watch_.Follow({});
  munmap(board, sizeof(ls_board));
}

}  // namespace
}  // namespace lockstep::agent
