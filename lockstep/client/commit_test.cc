// Tries the commit rule on every interleaving of small jobs, with a crash of the whole job at every point, and on real
// threads.
#include "lockstep/client/commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

namespace {

// A board of its own memory, copyable. Numbers stay small here: a char each in keys.
class Board {
 public:
  explicit Board(uint32_t ranks) : words_(ls_board_bytes(ranks) / sizeof(uint64_t)) {
    get()->ranks = get()->world_size = ranks;
    StartEpoch(1);
  }
  ls_board* get() { return reinterpret_cast<ls_board*>(words_.data()); }
  ls_rank_block* block(size_t rank) { return &get()->rank[rank]; }
  uint32_t ranks() { return get()->ranks; }
  void StartEpoch(uint64_t epoch) {
    __atomic_store_n(&get()->epoch, epoch, __ATOMIC_RELEASE);
    for (uint32_t r = 0; r < ranks(); ++r) ls_block_begin_epoch(block(r), epoch);
  }
  // What the rule can see of it; the sequence matters by its parity only.
  std::string Key() {
    std::string key(1, static_cast<char>(get()->epoch));
    key += static_cast<char>(get()->pinned_epoch);
    key += static_cast<char>(get()->pinned_step);
    for (uint32_t r = 0; r < ranks(); ++r) {
      key += static_cast<char>(block(r)->attempted_step);
      for (const ls_slot& slot : block(r)->slot) {
        for (const auto value : {slot.sequence % 2, slot.state, slot.epoch, static_cast<uint64_t>(slot.step)}) {
          key += static_cast<char>(value);
        }
      }
    }
    return key;
  }

 private:
  std::vector<uint64_t> words_;
};

using Choose = std::function<int(const ls_board*, uint32_t, uint64_t, int64_t)>;

// One rank as it saves one step after the other; Advance() is one store (or one look at the board).
struct Saver {
  enum Stage { kChoose, kRename, kOpen, kAttempt, kDone } stage = kChoose;
  int64_t step = 0;
  int slot = -1;

  void Advance(Board& board, uint32_t rank, const Choose& choose, bool attempt_first) {
    ls_rank_block* block = board.block(rank);
    const uint64_t epoch = board.get()->epoch;
    switch (stage) {
      case kChoose:
        slot = choose(board.get(), rank, epoch, step);
        if (attempt_first) ls_attempted(block, step);
        stage = slot < 0 ? kAttempt : kRename;
        break;
      case kRename:  // a crash may come in the middle of ls_slot_open
        block->slot[slot].sequence = block->slot[slot].sequence / 2 * 2 + 3;
        block->slot[slot].state = LS_SLOT_WRITING;
        stage = kOpen;
        break;
      case kOpen:
        ls_slot_open(&block->slot[slot], epoch, step, board.ranks());
        stage = kAttempt;
        break;
      case kAttempt:
        ls_attempted(block, step);
        stage = kDone;
        break;
      case kDone:
        if (slot >= 0) ls_slot_done(&block->slot[slot], 1, 1, 0, 0);
        *this = {kChoose, step + 1, -1};
        break;
    }
  }
  std::string Key() const { return {static_cast<char>(stage), static_cast<char>(step), static_cast<char>(slot)}; }
};

struct World {
  explicit World(uint32_t ranks) : board(ranks), savers(ranks) {}
  Board board;
  std::vector<Saver> savers;
  int crashes = 0;
  int pins = 0;               // begun
  ls_checkpoint wanted = {};  // about to be pinned; epoch 0: nothing
  ls_checkpoint pinned = {};  // ls_pin() has answered true

  // The agent's next move, as one store or one look: choose, store the pin, look, release.
  void AdvanceAgent() {
    ls_board* board_ = board.get();
    if (pinned.epoch != 0) {
      ls_unpin(board_);
      pinned = {};
    } else if (wanted.epoch == 0) {
      wanted = Committed();
      ++pins;
    } else if (board_->pinned_epoch == 0) {
      board_->pinned_step = wanted.step;
      board_->pinned_epoch = wanted.epoch;
    } else {
      if (ls_pin(board_, wanted)) pinned = wanted;
      wanted = {};
    }
  }
  bool PinHolds() { return pinned.epoch == 0 || ls_committed(board.get(), pinned); }

  ls_checkpoint Committed() { return ls_newest_committed(board.get(), 0); }
  void Crash() {
    ++crashes;
    const ls_checkpoint restored = Committed();
    board.StartEpoch(board.get()->epoch + 1);
    for (Saver& saver : savers) saver = {Saver::kChoose, restored.step + 1, -1};
  }
  std::string Key() {
    std::string key = board.Key() + static_cast<char>(crashes) + static_cast<char>(pins);
    for (const ls_checkpoint& id : {wanted, pinned}) key += {static_cast<char>(id.epoch), static_cast<char>(id.step)};
    for (const Saver& saver : savers) key += saver.Key();
    return key;
  }
};

struct Rule {
  Choose choose = ls_slot_choose;
  bool attempt_first = false;
};

// Depth-first over all interleavings. The newest committed checkpoint must never become an older one, nor none.
class Explorer {
 public:
  Explorer(Rule rule, int64_t steps, int crashes, int pins = 0)
      : rule_(std::move(rule)), steps_(steps), crashes_(crashes), pins_(pins) {}
  bool Holds(const World& start) {
    std::vector<World> open = {start};
    while (!open.empty()) {
      World world = std::move(open.back());
      open.pop_back();
      if (!seen_.insert(world.Key()).second) continue;
      if (!Expand(world, open)) return false;
    }
    return true;
  }
  size_t states() const { return seen_.size(); }

 private:
  bool Expand(World& world, std::vector<World>& open) {
    const ls_checkpoint before = world.Committed();
    for (uint32_t r = 0; r < world.savers.size(); ++r) {
      if (world.savers[r].step >= steps_) continue;
      World next = world;
      next.savers[r].Advance(next.board, r, rule_.choose, rule_.attempt_first);
      if (ls_newer(before, next.Committed()) || !next.PinHolds()) return false;
      open.push_back(std::move(next));
    }
    if (world.pins < pins_ || world.wanted.epoch != 0 || world.pinned.epoch != 0) {
      World next = world;
      next.AdvanceAgent();
      if (!next.PinHolds()) return false;
      open.push_back(std::move(next));
    }
    if (world.crashes < crashes_) {
      world.Crash();
      if (ls_newer(before, world.Committed())) return false;
      open.push_back(world);
    }
    return true;
  }
  Rule rule_;
  int64_t steps_;
  int crashes_;
  int pins_;
  std::unordered_set<std::string> seen_;
};

TEST(Commit, NothingCommittedIsEverLostInAnyInterleavingOfTwoRanksAndTwoCrashes) {
  Explorer explorer(Rule{}, 7, 2);
  EXPECT_TRUE(explorer.Holds(World(2)));
  EXPECT_GT(explorer.states(), 50'000u) << "the search must not have become empty";
}

TEST(Commit, NothingCommittedIsEverLostInAnyInterleavingOfThreeRanks) {
  Explorer explorer(Rule{}, 5, 0);
  EXPECT_TRUE(explorer.Holds(World(3)));
  EXPECT_GT(explorer.states(), 10'000u);
}

TEST(Commit, WhatIsPinnedStaysWholeInAnyInterleavingOfTwoRanksACrashAndTwoPins) {
  Explorer explorer(Rule{}, 5, 1, 2);
  EXPECT_TRUE(explorer.Holds(World(2)));
  EXPECT_GT(explorer.states(), 50'000u) << "the search must not have become empty";
}

TEST(Commit, WhatIsPinnedStaysWholeInAnyInterleavingOfThreeRanks) {
  Explorer explorer(Rule{}, 3, 0, 1);
  EXPECT_TRUE(explorer.Holds(World(3)));
  EXPECT_GT(explorer.states(), 10'000u);
}

TEST(Commit, TheSearchFindsARuleThatIsBlindToPins) {
  const Choose blind = [](const ls_board* board, uint32_t rank, uint64_t epoch, int64_t step) {
    Board copy(board->ranks);
    std::memcpy(copy.get(), board, ls_board_bytes(board->ranks));
    ls_unpin(copy.get());
    return ls_slot_choose(copy.get(), rank, epoch, step);
  };
  EXPECT_FALSE(Explorer({blind, false}, 5, 0, 1).Holds(World(2)));
}

// A pin costs steps, counted as skipped, and no checkpoint; when it is gone all goes on.
TEST(Commit, UnderAPinOneMoreCheckpointIsTakenAndThenStepsAreSkipped) {
  World world(2);
  const auto step = [&] {
    for (uint32_t r = 0; r < 2; ++r) {
      do world.savers[r].Advance(world.board, r, ls_slot_choose, false);
      while (world.savers[r].stage != Saver::kChoose);
    }
  };
  step();
  step();
  ASSERT_TRUE(ls_pin(world.board.get(), {1, 1}));
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(world.Committed().step, 2) << "beside the pinned one";
  EXPECT_TRUE(ls_committed(world.board.get(), {1, 1}));
  EXPECT_FALSE(ls_pin(world.board.get(), {1, 1})) << "not the newest";
  EXPECT_EQ(world.board.get()->pinned_epoch, 0u);
  step();
  EXPECT_EQ(world.Committed().step, 5);
}

TEST(Commit, TheSearchFindsEachPlantedMistake) {
  const Choose older_always = [](const ls_board* board, uint32_t rank, uint64_t, int64_t) {
    return board->rank[rank].slot[0].step > board->rank[rank].slot[1].step ? 1 : 0;
  };
  const Choose newer_is_free = [](const ls_board* board, uint32_t rank, uint64_t, int64_t) {
    const ls_rank_block& block = board->rank[rank];
    const ls_slot_view view[LS_SLOTS] = {ls_slot_read(&block.slot[0]), ls_slot_read(&block.slot[1])};
    return ls_slot_victim(view, ls_newest_committed(board, rank));
  };
  EXPECT_FALSE(Explorer({older_always, false}, 4, 0).Holds(World(2)));
  EXPECT_FALSE(Explorer({newer_is_free, false}, 4, 0).Holds(World(2)));
  EXPECT_FALSE(Explorer({ls_slot_choose, true}, 4, 0).Holds(World(2))) << "an attempt seen before its slot";
}

// 4 ranks, 200 seeds, crashes now and then, ranks up to any distance apart.
TEST(Commit, NothingCommittedIsEverLostInRandomSchedules) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    World world(4);
    for (int i = 0; i < 2000; ++i) {
      const ls_checkpoint before = world.Committed();
      const uint32_t r = static_cast<uint32_t>(random() % 4);
      if (random() % 500 == 0) {
        world.Crash();
      } else {
        world.savers[r].Advance(world.board, r, ls_slot_choose, false);
      }
      ASSERT_FALSE(ls_newer(before, world.Committed())) << "seed " << seed << ", action " << i;
    }
  }
}

// Ranks in lockstep, each copy done before the next step, in any order within it: every step is committed.
TEST(Commit, EveryStepIsCommittedInLockstep) {
  std::mt19937 random(7);
  World world(4);
  for (int64_t step = 0; step < 500; ++step) {
    for (bool done = false; !done;) {
      const uint32_t r = static_cast<uint32_t>(random() % 4);
      if (world.savers[r].step == step) world.savers[r].Advance(world.board, r, ls_slot_choose, false);
      done = std::ranges::all_of(world.savers, [&](const Saver& saver) { return saver.step > step; });
    }
    ASSERT_EQ(world.Committed().step, step);
  }
}

// Rank 1's copy always ends after rank 0 has chosen for the next step: no livelock, every second step or so is
// committed.
TEST(Commit, ASlowCopyLowersTheRateButNeverStopsIt) {
  World world(2);
  const auto advance_until = [&](uint32_t r, int64_t step, Saver::Stage stage) {
    while (world.savers[r].step != step || world.savers[r].stage != stage) {
      world.savers[r].Advance(world.board, r, ls_slot_choose, false);
    }
  };
  for (int64_t step = 0; step < 100; ++step) {
    advance_until(0, step + 1, Saver::kChoose);
    advance_until(1, step, Saver::kDone);  // on its way it ends the copy of the step before
    if (step >= 4) {
      ASSERT_GE(world.Committed().step, step - 2);
    }
  }
}

TEST(Commit, DeadSlotsOfOlderEpochsAreWrittenFirst) {
  World world(2);
  for (int i = 0; i < 5; ++i) world.savers[0].Advance(world.board, 0, ls_slot_choose, false);  // step 0 on rank 0 only
  for (int i = 0; i < 5; ++i) world.savers[0].Advance(world.board, 0, ls_slot_choose, false);  // and step 1
  EXPECT_EQ(ls_slot_choose(world.board.get(), 0, 1, 2), -1) << "step 0 may still be committed";
  world.Crash();
  EXPECT_EQ(ls_slot_choose(world.board.get(), 0, 2, 0), 0);
  EXPECT_EQ(ls_slot_choose(world.board.get(), 0, 2, -1), -1) << "a step not above the last attempt";
}

TEST(Commit, AWriterThatDiedWhileRenamingIsReadAsChangingUntilTheNextOne) {
  Board board(1);
  ls_slot* slot = &board.block(0)->slot[0];
  slot->sequence = 5;
  EXPECT_TRUE(ls_slot_read(slot).changing);
  ls_slot_open(slot, 2, 7, 1);
  EXPECT_FALSE(ls_slot_read(slot).changing);
  ls_slot_done(slot, 1, 1, 0, 0);
  EXPECT_TRUE(ls_committed(board.get(), {2, 7}));
}

std::string Snapshot(Board& board) {
  std::string text;
  for (uint32_t r = 0; r < board.ranks(); ++r) {
    for (const ls_slot& slot : board.block(r)->slot) {
      text += std::to_string(__atomic_load_n(&slot.sequence, __ATOMIC_ACQUIRE)) + ' ';
    }
  }
  return text;
}

// Real threads: whoever takes two equal looks at all sequence numbers has seen one moment, and then something is
// committed.
TEST(Commit, SomethingIsCommittedAtEveryMomentUnderThreads) {
  Board board(3);
  std::vector<Saver> first(3);
  for (uint32_t r = 0; r < 3; ++r) {
    while (first[r].step == 0) first[r].Advance(board, r, ls_slot_choose, false);
  }
  std::vector<std::jthread> writers;
  writers.reserve(3);
  for (uint32_t r = 0; r < 3; ++r) {
    writers.emplace_back([&board, r](const std::stop_token& stop) {
      for (int64_t step = 1; !stop.stop_requested(); ++step) {
        const int slot = ls_slot_choose(board.get(), r, 1, step);
        if (slot >= 0) ls_slot_open(&board.block(r)->slot[slot], 1, step, 3);
        ls_attempted(board.block(r), step);
        if (slot >= 0) ls_slot_done(&board.block(r)->slot[slot], 1, 1, 0, 0);
        if (step % 16 == 0) std::this_thread::yield();
      }
    });
  }
  for (int moments = 0; moments < 2000;) {
    const std::string before = Snapshot(board);
    const ls_checkpoint committed = ls_newest_committed(board.get(), 0);
    if (Snapshot(board) != before) continue;
    ASSERT_GT(committed.epoch, 0u);
    ++moments;
  }
}

// ---- several nodes: the coordinator says what is whole everywhere ----

class Afar : public testing::Test {
 protected:
  Afar() {
    board_.get()->world_size = 4;
    Publish(0, -1);
  }
  void Hold(int slot, uint64_t epoch, int64_t step, bool done = true) {
    ls_slot_open(&board_.block(0)->slot[slot], epoch, step, 4);
    if (done) ls_slot_done(&board_.block(0)->slot[slot], 1, 1, 0, 0);
  }
  void Publish(uint64_t epoch, int64_t step, int64_t dead = -1) { ls_publish(board_.get(), {epoch, step}, dead, 0); }
  int Choose(uint64_t epoch, int64_t step) { return ls_slot_choose(board_.get(), 0, epoch, step); }

  Board board_{2};  // two of the job's four ranks are here
};

TEST_F(Afar, FreeSlotsComeFirst) {
  EXPECT_EQ(Choose(1, 0), 0);
  Hold(0, 1, 0);
  EXPECT_EQ(Choose(1, 1), 1);
}

TEST_F(Afar, NothingIsGivenUpBeforeSomethingNewerIsWholeEverywhere) {
  Hold(0, 1, 0);
  Hold(1, 1, 1);
  EXPECT_EQ(Choose(1, 2), -1) << "whole on this node, but who knows of the others";
  Publish(1, 0);
  EXPECT_EQ(Choose(1, 2), -1) << "step 0 is the newest that all have, step 1 may become it";
  Publish(1, 1);
  EXPECT_EQ(Choose(1, 2), 0);
}

TEST_F(Afar, WhatAnOlderEpochLeftIsGivenUpSaveTheOneRestored) {
  Hold(0, 1, 7);
  Hold(1, 1, 8);
  Publish(1, 7);
  board_.StartEpoch(2);
  EXPECT_EQ(Choose(2, 8), 1);
  Hold(1, 2, 8, false);
  EXPECT_EQ(Choose(2, 9), -1) << "being written, and not yet whole anywhere";
}

TEST_F(Afar, WhatCanNoLongerBecomeWholeIsGivenUp) {
  Hold(0, 1, 5);
  Hold(1, 1, 2);
  Publish(1, 2);
  EXPECT_EQ(Choose(1, 7), -1) << "another node may hold step 5, too";
  Publish(1, 2, 6);
  EXPECT_EQ(Choose(1, 7), 0) << "it holds step 6, and has passed 5";
}

TEST_F(Afar, APinnedCheckpointStays) {
  Hold(0, 1, 0);
  Hold(1, 1, 1);
  Publish(1, 1);
  board_.get()->pinned_step = 0;
  board_.get()->pinned_epoch = 1;
  EXPECT_EQ(Choose(1, 2), -1);
}

// Of several nodes, all ranks must come to the same answer, and try ever rarer steps while nothing becomes whole.
TEST(Meeting, EveryStepAtFirstThenOnAGridThatGrows) {
  const auto steps = [](int64_t published, int64_t stride, int64_t until, int64_t meet_from = -1) {
    std::vector<int64_t> meetings;
    for (int64_t step = std::max(published, meet_from) + stride; step <= until; step += stride)
      if (ls_is_meeting(step, step - stride, {1, published}, meet_from)) meetings.push_back(step);
    return meetings;
  };
  EXPECT_THAT(steps(-1, 1, 40), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32));
  EXPECT_THAT(steps(9, 10, 209), testing::ElementsAre(19, 29, 39, 49, 59, 69, 79, 89, 129, 169)) << "every tenth step";
  EXPECT_THAT(steps(9, 1, 1010, 1000), testing::ElementsAre(1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008))
      << "all agents are there again";
  EXPECT_TRUE(ls_is_meeting(1001, -1, {1, 3}, 0)) << "the first of an epoch";
}

}  // namespace
