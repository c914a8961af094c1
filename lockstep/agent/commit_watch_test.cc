#include "lockstep/agent/commit_watch.h"

#include <gtest/gtest.h>

#include "lockstep/agent/buffers.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {
namespace {

class CommitWatchTest : public testing::Test {
 protected:
  CommitWatchTest() { Begin(1); }
  void Begin(uint64_t epoch) {
    board_->epoch = epoch;
    for (uint32_t rank = 0; rank < board_->ranks; ++rank) {
      board_->rank[rank].step_end_ns = 0;
      ls_block_begin_epoch(&board_->rank[rank], epoch);
    }
  }
  void End(int64_t at) {
    for (uint32_t rank = 0; rank < board_->ranks; ++rank) board_->rank[rank].step_end_ns = at + rank;
  }
  void Save(int64_t step, int slot) {
    for (uint32_t rank = 0; rank < board_->ranks; ++rank) {
      ls_slot_open(&board_->rank[rank].slot[slot], board_->epoch, step, board_->world_size);
      ls_attempted(&board_->rank[rank], step);
      ls_slot_done(&board_->rank[rank].slot[slot], 1, 1, 0, 0);
    }
  }
  std::string Look() {
    const auto& newest = commits_.Look(*board_);
    if (!newest) return "none";
    const std::string ended = newest->ended ? fmt::format("ended at {}", newest->ended->value) : "ended some time";
    return fmt::format("step {} of epoch {}, {}", newest->point.step, newest->point.epoch.value(), ended);
  }

  BoardMap map_ = *BoardMap::Create(2);
  ls_board* board_ = map_.get();
  CommitWatch commits_;
};

TEST_F(CommitWatchTest, KnowsWhenTheStepEndedWhateverRanksDoThen) {
  EXPECT_EQ(Look(), "none");
  End(1000);
  Save(9, 0);
  EXPECT_EQ(Look(), "step 9 of epoch 1, ended at 1000");
  End(2000);
  EXPECT_EQ(Look(), "step 9 of epoch 1, ended at 1000");
  Save(19, 1);
  EXPECT_EQ(Look(), "step 19 of epoch 1, ended at 2000");
  Begin(2);
  EXPECT_EQ(Look(), "step 19 of epoch 1, ended at 2000") << "no step of the next epoch has ended yet";
}

// 40 steps since 0, the newest of which ended at 4000: 100 each.
TEST_F(CommitWatchTest, OfOneThatBecameWholeLateTheStepEndedWhenItDid) {
  Save(9, 0);
  for (uint32_t rank = 0; rank < board_->ranks; ++rank) {
    board_->rank[rank].step = 39;
    board_->rank[rank].steps = 40;
    board_->rank[rank].loop_begin_ns = rank;
  }
  End(4000);
  EXPECT_EQ(Look(), "step 9 of epoch 1, ended at 1000");
}

TEST_F(CommitWatchTest, WhoComesLaterMayNotKnow) {
  End(1000);
  Save(9, 0);
  Begin(2);
  EXPECT_EQ(Look(), "step 9 of epoch 1, ended some time");
  board_->rank[0].step_end_ns = 3000;
  CommitWatch another;
  EXPECT_EQ(another.Look(*board_)->ended, std::nullopt) << "rank 1 has not ended one";
}

}  // namespace
}  // namespace lockstep::agent
