// Jobs that share, as the dispatcher has them: where late ones begin, and how their orders go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "lockstep/base/test_folder.h"
#include "lockstep/feed/dispatcher.h"
#include "lockstep/feed/test_job.h"
#include "lockstep/sampling/random.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::feed {
namespace {

using sampling::Group;
using sampling::Policy;

constexpr int64_t kStep = 1000;  // ns

class GroupJobs : public testing::Test {
 protected:
  void Start(uint64_t universe, uint64_t seed, std::optional<Policy> policy, uint64_t cache_items = 0) {
    universe_ = universe;
    seed_ = seed;
    clock_.Set(0);
    std::vector<std::unique_ptr<Maker>> makers;
    makers.push_back(std::make_unique<CountingMaker>(works_));
    dispatcher_ = std::make_unique<Dispatcher>(
        Dispatcher::Settings{cache_items * works_.image_bytes}, std::move(makers), [](uint64_t) { return int64_t{0}; },
        clock_);
    group_ = std::make_shared<Group>(
        sampling::GroupOptions{.items = universe, .seed = seed, .cache_items = cache_items, .policy = policy});
  }
  std::shared_ptr<Job> NewJob(uint64_t key, const std::string& items, uint64_t batch = 1, uint64_t world = 1) {
    const auto set = std::make_shared<const sampling::ItemSet>(*sampling::ParseItemSet(items, {"test"}));
    dispatcher_->Look([&](const Dispatcher&) { group_->Join(key, set); });
    return std::make_shared<Job>(Job{.name = std::to_string(key),
                                     .terms = items,
                                     .cut = {set->size(), batch, world},
                                     .recipe = {},
                                     .seed = seed_,
                                     .key = key,
                                     .epochs = Epochs(key, static_cast<uint32_t>(world), group_, begun_.get())});
  }
  std::unique_ptr<TestRank> NewRank(const std::shared_ptr<Job>& job, uint32_t number = 0,
                                    const std::string& state = "") {
    return std::make_unique<TestRank>(*dispatcher_, job, number, 2, state, universe_, clock_.Now());
  }
  // What each rank of job 1 gets in so many steps, until the job ends.
  std::array<std::vector<SeenBatch>, 2> SeenByTwoRanks(int steps) {
    std::array<std::vector<SeenBatch>, 2> seen;
    const auto job = NewJob(1, "0-599", 30, 2);
    std::unique_ptr<TestRank> ranks[] = {NewRank(job, 0), NewRank(job, 1)};
    for (auto& rank : ranks) {
      for (int step = 0; step < steps; ++step) seen[rank->rank().number].push_back(rank->Next());
    }
    return seen;
  }
  void Pace(uint64_t key, double item_ns) {
    dispatcher_->Look([&](const Dispatcher&) { group_->Pace(key, item_ns); });
  }

  Works works_;
  TestClock clock_;
  uint64_t universe_ = 0, seed_ = 0;
  std::shared_ptr<Group> group_;
  std::unique_ptr<BegunEpochs> begun_;  // null: the service that was killed left nothing behind
  std::unique_ptr<Dispatcher> dispatcher_;
};

// The leader waits eight steps for item 2; the other comes at any time, and so often while the leader stands there.
TEST_F(GroupJobs, ALateOneIsUniformWhateverTheLeaderWaitsFor) {
  sampling::OrderCounts counts(8);
  for (uint64_t run = 0; run < 1500; ++run) {
    Start(8, run, Policy::kCommon);
    const auto leader = NewRank(NewJob(1, "0-7"));
    Pace(1, kStep);
    const auto joins = static_cast<int64_t>(sampling::Rng(sampling::Hash(run, 1)).Below(15));
    for (int64_t now = 0, ready = 0; now < joins; ++now) {
      clock_.Set(now * kStep);
      if (now >= ready) ready = now + (leader->Next().ids.at(0) == 2 ? 8 : 1);
    }
    clock_.Set(joins * kStep);
    const auto late = NewRank(NewJob(2, "0-7"));
    std::vector<uint32_t> order;
    for (const SeenBatch& batch : late->Epoch()) order.push_back(static_cast<uint32_t>(batch.ids.at(0)));
    counts.AddPlaces(order);
  }
  EXPECT_GT(counts.PlaceChance(), 0.001);
}

TEST_F(GroupJobs, ALateOneBeginsWhereTheClockSays) {
  Start(600, 5, Policy::kCommon);
  const auto leader = NewRank(NewJob(1, "0-599", 10));
  Pace(1, kStep);
  std::vector<uint64_t> ids;
  for (int step = 0; step < 30; ++step) {
    const SeenBatch batch = leader->Next();
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
  clock_.Set(200 * kStep);  // it is faster than was thought
  const auto late = NewRank(NewJob(2, "0-599", 10));
  const SeenBatch first = late->Next();
  EXPECT_EQ(first.ids, std::vector<uint64_t>(ids.begin() + 200, ids.begin() + 210));
}

// Whatever the policy, whoever comes and goes, each item once an epoch, and from a state on just what would have come.
TEST_F(GroupJobs, ExactlyOnceAndExactlyOn) {
  for (const Policy policy : {Policy::kCommon, Policy::kPaced}) {
    Start(600, 9, policy, 20);
    auto large = NewRank(NewJob(1, "0-599", 10));
    Pace(1, kStep);
    std::vector<SeenBatch> whole;
    {
      const auto small = NewRank(NewJob(2, "100-249", 10));
      for (int epoch = 0; epoch < 4; ++epoch) {
        for (int step = 0; step < 15; ++step) {
          clock_.Set(clock_.Now().value + 10 * kStep);
          large->Next();
          whole.push_back(small->Next());
        }
        std::vector<uint64_t> ids, expected(150);
        for (size_t i = whole.size() - 15; i < whole.size(); ++i)
          ids.insert(ids.end(), whole[i].ids.begin(), whole[i].ids.end());
        std::sort(ids.begin(), ids.end());
        std::iota(expected.begin(), expected.end(), uint64_t{100});
        EXPECT_EQ(ids, expected) << sampling::NameOf(policy) << " epoch " << epoch;
      }
    }
    const bool paced = group_->choice().policy == Policy::kPaced;
    large.reset();  // it knows this dispatcher
    for (const size_t stop : {3U, 17U, 40U}) {
      Start(600, 9, policy, 20);  // another life of the service; the large job is not there
      const auto again = NewRank(NewJob(2, "100-249", 10), 0, whole[stop].state);
      const size_t same_epoch = stop / 15 * 15 + 15;
      for (size_t step = stop + 1; step < same_epoch; ++step)
        EXPECT_EQ(again->Next().ids, whole[step].ids) << stop << " " << step;
    }
    EXPECT_EQ(paced, policy == Policy::kPaced);
  }
}

// The small job's epochs are windows of the laps of the large one: what both read of those comes to both at about the
// same time, and is prepared once.
TEST_F(GroupJobs, PacedOnesSaveWhatCommonOrdersPrepareTwice) {
  uint64_t preparations[2];
  for (const Policy policy : {Policy::kCommon, Policy::kPaced}) {
    Start(6000, 9, policy, 60);
    works_.decoded = works_.prepared = 0;
    const auto large_job = NewJob(1, "0-5999", 10), small_job = NewJob(2, "0-1499", 10);
    Pace(1, kStep);
    Pace(2, kStep);
    const auto large = NewRank(large_job), small = NewRank(small_job);
    for (int step = 0; step < 600; ++step) {
      clock_.Set(clock_.Now().value + 10 * kStep);
      large->Next();
      small->Next();
    }
    preparations[policy == Policy::kPaced ? 1 : 0] = works_.preparations();
  }
  // Of 6000 and four times 1500; a window of 1500 places has 375 that are in both sets.
  EXPECT_LT(preparations[1], preparations[0] * 95 / 100) << preparations[0];
}

// Rank 1 comes back first, at the end of an epoch; where the next one begins only rank 0 knows.
TEST_F(GroupJobs, ARankThatGoesOnWaitsForTheOneThatKnowsMore) {
  Start(600, 5, Policy::kCommon);
  const auto seen = SeenByTwoRanks(12);
  EXPECT_EQ(seen[0][10].epoch, 1U);
  Start(600, 5, Policy::kCommon);
  const auto other = NewRank(NewJob(7, "0-599", 30));  // so that a lap of this life is another one's already
  const auto job = NewJob(1, "0-599", 30, 2);
  const auto late = NewRank(job, 1, seen[1][7].state);
  EXPECT_EQ(late->Next().ids, seen[1][8].ids);
  EXPECT_EQ(late->rank().ticket, 1U);  // its next batch is the last of the epoch
  const auto ahead = NewRank(job, 0, seen[0][10].state);
  EXPECT_EQ(ahead->Next().ids, seen[0][11].ids);
  for (size_t step : {9U, 10U, 11U}) EXPECT_EQ(late->Next().ids, seen[1][step].ids) << step;
}

// The others have the last batch of the epoch from the service that was killed, and are in a collective with this one:
// they come back when it has got its own.
TEST_F(GroupJobs, ARankThatLagsIsToldWhatTheServiceBeforeBegan) {
  const TestFolder folder;
  const std::string path = folder / "begun";
  begun_ = std::make_unique<BegunEpochs>(path);
  Start(600, 5, Policy::kCommon);
  const auto seen = SeenByTwoRanks(22);
  begun_ = std::make_unique<BegunEpochs>(path);
  Start(600, 5, Policy::kCommon);
  const auto other = NewRank(NewJob(7, "0-599", 30));
  const auto job = NewJob(1, "0-599", 30, 2);
  const auto late = NewRank(job, 1, seen[1][7].state);
  for (size_t step = 8; step < 13; ++step) EXPECT_EQ(late->Next().ids, seen[1][step].ids) << step;
  const auto ahead = NewRank(job, 0, seen[0][11].state);
  for (size_t step = 12; step < 20; ++step) EXPECT_EQ(ahead->Next().ids, seen[0][step].ids) << step;
  begun_->Remove();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// The one that lags goes on first, and is told of the next epoch or not: then comes an order that was not there yet.
TEST_F(GroupJobs, AfterACrashNoEpochHasTheOrderOfAnother) {
  const TestFolder folder;
  const std::string path = folder / "begun";
  for (const bool kept : {false, true}) {
    const auto live = [&] {
      if (kept) begun_ = std::make_unique<BegunEpochs>(path);
      Start(600, 5, Policy::kCommon);
    };
    live();
    const auto seen = SeenByTwoRanks(22);
    live();
    const auto job = NewJob(1, "0-599", 30, 2);
    const auto late = NewRank(job, 1, seen[1][7].state);
    if (kept) {
      for (size_t step = 8; step < 12; ++step) EXPECT_EQ(late->Next().ids, seen[1][step].ids) << step;
    }
    const auto ahead = NewRank(job, 0, seen[0][11].state);
    for (size_t step = kept ? 12 : 8; step < 20; ++step) EXPECT_EQ(late->Next().ids, seen[1][step].ids) << step;
    for (size_t step = 12; step < 20; ++step) EXPECT_EQ(ahead->Next().ids, seen[0][step].ids) << step;
    EXPECT_EQ(ahead->Next().ids, seen[0][20].ids);
    EXPECT_EQ(late->Next().ids, seen[1][20].ids);
    begun_.reset();
  }
}

// A new life of a job forgets what an older one began; a file of something else is none.
TEST(BegunEpochs, OnlyWhatFollowsIsToldAndForgotten) {
  const TestFolder folder;
  const std::string path = folder / "begun";
  BegunEpochs begun(path);
  for (uint64_t epoch = 0; epoch < 100; ++epoch) begun.Note(1, epoch, {.number = epoch + 3});
  const BegunEpochs again(path);
  EXPECT_EQ(again.After(1, 98, {.number = 101}), (sampling::Lap{.number = 102}));
  EXPECT_EQ(again.After(1, 98, {.number = 100}), std::nullopt) << "another run's";
  EXPECT_EQ(again.After(1, 99, {.number = 102}), std::nullopt);
  EXPECT_EQ(again.After(1, 5, {.number = 8}), std::nullopt) << "too long ago";
  EXPECT_EQ(again.After(2, 98, {.number = 101}), std::nullopt);
  begun.Note(1, 98, {.number = 101});
  EXPECT_NE(begun.After(1, 98, {.number = 101}), std::nullopt) << "as it was";
  begun.Note(1, 0, {});
  EXPECT_EQ(begun.After(1, 98, {.number = 101}), std::nullopt);
  std::ofstream(path) << "something else\n1 98 101 0 0\n1 99 102 0 0\n";
  EXPECT_EQ(BegunEpochs(path).After(1, 98, {.number = 101}), std::nullopt);
}

// As a loader that is made first and told its state then: what it began before says nothing.
TEST_F(GroupJobs, RanksMayJoinBeforeTheyAreToldTheirState) {
  Start(600, 5, Policy::kCommon);
  const auto seen = SeenByTwoRanks(5);
  Start(600, 5, Policy::kCommon);
  const auto other = NewRank(NewJob(7, "0-599", 30));
  Pace(7, kStep);
  clock_.Set(100 * kStep);
  const auto job = NewJob(1, "0-599", 30, 2);
  std::unique_ptr<TestRank> ranks[] = {NewRank(job, 0), NewRank(job, 1)};
  for (const uint32_t number : {0U, 1U}) {
    ranks[number] = nullptr;
    ranks[number] = NewRank(job, number, seen[number][2].state);
  }
  for (const uint32_t number : {0U, 1U}) {
    for (const size_t step : {3U, 4U}) EXPECT_EQ(ranks[number]->Next().ids, seen[number][step].ids);
  }
}

// Epochs as short as a ring, so that a rank which is not told yet stands before the job's next epoch when another is.
// Here it goes on alone, as on several machines, whose services must come to the same.
TEST_F(GroupJobs, ARankThatIsNotToldYetDoesNotSayWhereTheNextEpochBegins) {
  Start(600, 5, Policy::kCommon);
  const auto other = NewRank(NewJob(7, "0-599", 30));  // so that the first epoch is in no first lap
  other->Epoch();
  std::string state;
  {
    const auto one = NewRank(NewJob(1, "0-599", 300));
    state = one->Next().state;
  }
  const auto alone = [&] {
    return std::make_shared<Job>(Job{.name = "1",
                                     .terms = "0-599",
                                     .cut = {600, 100, 3},
                                     .recipe = {},
                                     .seed = seed_,
                                     .key = 1,
                                     .epochs = Epochs(1, 3, nullptr)});
  };
  std::vector<std::vector<uint64_t>> expected[3];
  for (const uint32_t number : {0U, 1U, 2U}) {
    const auto job = alone();
    const auto told = NewRank(job, number, state);
    for (int step = 0; step < 6; ++step) expected[number].push_back(told->Next().ids);
  }
  const auto job = alone();
  std::unique_ptr<TestRank> ranks[3];
  for (const uint32_t number : {0U, 1U, 2U}) ranks[number] = NewRank(job, number);
  for (const uint32_t number : {0U, 1U, 2U}) {
    ranks[number].reset();
    ranks[number] = NewRank(job, number, state);
  }
  for (const uint32_t number : {0U, 1U, 2U}) {
    for (int step = 0; step < 6; ++step) EXPECT_EQ(ranks[number]->Next().ids, expected[number][step]) << step;
  }
}

// Two ranks that are an epoch apart, as after a crash of the service; the one behind joins before it is told its state.
TEST_F(GroupJobs, WhereANewRankBeginsSaysNothingOfAJobThatGoesOn) {
  const std::string path = testing::TempDir() + "feed.new.begun";
  const auto live = [&] {
    begun_ = std::make_unique<BegunEpochs>(path);
    Start(600, 5, Policy::kCommon);
  };
  live();
  NewRank(NewJob(7, "0-599", 30))->Epoch();
  const auto seen = SeenByTwoRanks(12);
  live();
  const auto job = NewJob(1, "0-599", 30, 2);
  const auto ahead = NewRank(job, 1, seen[1][10].state);
  NewRank(job, 0);
  const auto late = NewRank(job, 0, seen[0][7].state);
  for (const size_t step : {8U, 9U, 10U, 11U}) EXPECT_EQ(late->Next().ids, seen[0][step].ids) << step;
  EXPECT_EQ(ahead->Next().ids, seen[1][11].ids);
  begun_->Remove();
}

}  // namespace
}  // namespace lockstep::feed
