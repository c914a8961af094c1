#include "lockstep/agent/buffers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace lockstep::agent {
namespace {

ls_join_message Ask(uint32_t kind, int rank, uint64_t bytes = 0) {
  ls_join_message request{};
  request.kind = kind;
  request.version = LS_JOIN_VERSION;
  request.rank = rank;
  request.epoch = 7;
  request.bytes = bytes;
  return request;
}

class BuffersTest : public testing::Test {
 protected:
  BuffersTest() : buffers_(*BoardMap::Create(2), [this](Bytes) { return budget_; }) { buffers_.board()->epoch = 7; }

  absl::Status budget_;
  Buffers buffers_;
  std::vector<int> fds_;
};

TEST_F(BuffersTest, HelloGivesBoardAndRing) {
  const ls_join_message reply = buffers_.Answer(Ask(LS_JOIN_HELLO, 1), fds_);
  EXPECT_EQ(reply.kind, LS_JOIN_OK);
  EXPECT_EQ(reply.world_size, 2u);
  ASSERT_EQ(fds_.size(), 2u);
  EXPECT_EQ(fds_[0], buffers_.board().fd());
}

TEST_F(BuffersTest, RefusesStaleEpochForeignRankAndOtherVersion) {
  ls_join_message stale = Ask(LS_JOIN_HELLO, 0);
  stale.epoch = 6;
  EXPECT_STREQ(buffers_.Answer(stale, fds_).text, "epoch 6 is over, epoch 7 acts now");
  EXPECT_STREQ(buffers_.Answer(Ask(LS_JOIN_HELLO, 2), fds_).text, "rank 2 is outside this node's 0..1");
  ls_join_message other = Ask(LS_JOIN_HELLO, 0);
  other.version = 9;
  EXPECT_EQ(buffers_.Answer(other, fds_).kind, LS_JOIN_REFUSED);
  EXPECT_TRUE(fds_.empty());
}

// A script that training has started, with its environment, and that uses Lockstep too, is not the rank.
TEST_F(BuffersTest, TheFirstToJoinIsTheRankWhileItLives) {
  const pid_t first = fork();
  if (first == 0)
    for (;;) pause();
  ls_join_message hello = Ask(LS_JOIN_HELLO, 0);
  EXPECT_EQ(buffers_.Answer(hello, fds_, first).kind, LS_JOIN_OK);
  fds_.clear();
  EXPECT_EQ(buffers_.Answer(hello, fds_, getpid()).text,
            fmt::format("rank 0 of this epoch is process {} already", first));
  EXPECT_TRUE(fds_.empty());
  EXPECT_EQ(buffers_.Answer(hello, fds_, first).kind, LS_JOIN_OK) << "it joins anew";
  EXPECT_EQ(buffers_.Answer(Ask(LS_JOIN_HELLO, 1), fds_, getpid()).kind, LS_JOIN_OK) << "as another rank";
  EXPECT_EQ(buffers_.Answer(Ask(LS_JOIN_HELLO, 1), fds_, first, true).kind, LS_JOIN_OK) << "what was started as it";
  EXPECT_EQ(buffers_.Answer(Ask(LS_JOIN_HELLO, 1), fds_, getpid()).kind, LS_JOIN_REFUSED);
  kill(first, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(first), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(buffers_.Answer(hello, fds_, getpid()).kind, LS_JOIN_OK) << "of the first, a zombie is left";
  waitpid(first, nullptr, 0);
  hello.epoch = buffers_.board()->epoch = 8;
  EXPECT_EQ(buffers_.Answer(hello, fds_, getppid()).kind, LS_JOIN_OK) << "in the next epoch";
}

TEST_F(BuffersTest, SameSizeGivesTheSameMemoryAgain) {
  buffers_.Answer(Ask(LS_JOIN_BUFFERS, 0, 5000), fds_);
  ASSERT_EQ(fds_.size(), size_t{LS_SLOTS});
  const std::vector<int> first = fds_;
  for (const int fd : first) EXPECT_EQ(lseek(fd, 0, SEEK_END), 5000);
  const ls_join_message reply = buffers_.Answer(Ask(LS_JOIN_BUFFERS, 0, 4000), fds_);
  EXPECT_EQ(fds_, first);
  EXPECT_EQ(reply.bytes, 5000u);
}

TEST_F(BuffersTest, GrowingKeepsTheMemoryAndWhatIsInIt) {
  buffers_.Answer(Ask(LS_JOIN_BUFFERS, 0, 4096), fds_);
  const std::vector<int> first = fds_;
  ASSERT_EQ(pwrite(first.at(1), "x", 1, 4095), 1);
  std::map<int, RankBuffers> shared;
  shared[0] = Shared(buffers_.ranks()[0]);
  const MappedBuffers reading(1, shared);
  const ls_join_message reply = buffers_.Answer(Ask(LS_JOIN_BUFFERS, 0, 10000), fds_);
  EXPECT_EQ(fds_, first);
  EXPECT_EQ(reply.bytes, 10000u);
  for (const int fd : first) EXPECT_EQ(lseek(fd, 0, SEEK_END), 10000);
  ASSERT_EQ(pwrite(first.at(1), "y", 1, 4094), 1);
  const std::span<const std::byte> slot = reading.slots()[0].slot[1];
  ASSERT_EQ(slot.size(), 4096u) << "a reader sees what it mapped";
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(slot.data()) + 4094, 2), "yx");
}

TEST_F(BuffersTest, ARefusedBudgetSaysWhyAndGivesNothing) {
  budget_ = MakeError(absl::StatusCode::kResourceExhausted, "2 ranks x 2 slots x 1 GB = 4 GB; 1 GB may be used");
  const ls_join_message reply = buffers_.Answer(Ask(LS_JOIN_BUFFERS, 0, 1 << 30), fds_);
  EXPECT_EQ(reply.kind, LS_JOIN_REFUSED);
  EXPECT_STREQ(reply.text, "2 ranks x 2 slots x 1 GB = 4 GB; 1 GB may be used");
  EXPECT_TRUE(fds_.empty());
}

TEST_F(BuffersTest, AWorkerCannotShrinkTheMemory) {
  buffers_.Answer(Ask(LS_JOIN_BUFFERS, 0, 4096), fds_);
  EXPECT_NE(ftruncate(fds_.at(0), 0), 0);
}

}  // namespace
}  // namespace lockstep::agent
