#include "lockstep/feed/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <numeric>

#include "lockstep/feed/test_job.h"

namespace lockstep::feed {
namespace {

using sampling::ItemSet;

ItemSet Range(uint64_t begin, uint64_t end) {
  const sampling::ItemRange range{begin, end - 1};
  return ItemSet(std::span(&range, 1));
}

std::vector<uint64_t> IdsOf(const std::vector<SeenBatch>& batches) {
  std::vector<uint64_t> ids;
  for (const SeenBatch& batch : batches) ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  return ids;
}
std::vector<uint64_t> Sorted(std::vector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}
std::vector<uint64_t> Numbers(uint64_t begin, uint64_t end) {
  std::vector<uint64_t> numbers(end - begin);
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

class DispatcherTest : public testing::Test {
 protected:
  void Start(size_t threads, uint64_t cache_bytes = 1 << 20) {
    std::vector<std::unique_ptr<Maker>> makers;
    for (size_t i = 0; i < threads; ++i) makers.push_back(std::make_unique<CountingMaker>(works_));
    dispatcher_ = std::make_unique<Dispatcher>(
        Dispatcher::Settings{cache_bytes}, std::move(makers),
        [](uint64_t item) { return static_cast<int64_t>(item % 10); }, clock_);
  }
  static std::shared_ptr<Job> NewJob(std::string name, const ItemSet& set, uint64_t batch = 16, uint64_t world = 1) {
    const EpochCut cut{set.size(), batch, world};
    const uint64_t key = name.size() * 100 + static_cast<uint64_t>(name[0]);
    return std::make_shared<Job>(Job{.name = std::move(name),
                                     .terms = set.ToString(),
                                     .cut = cut,
                                     .recipe = {},
                                     .seed = 7,
                                     .key = key,
                                     .epochs = Epochs(key, static_cast<uint32_t>(world), nullptr)});
  }
  Tally tally() const {
    Tally seen;
    dispatcher_->Look([&](const Dispatcher& dispatcher) { seen = dispatcher.tally(); });
    return seen;
  }

  Works works_;
  SystemClock clock_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, AnEpochHasEachItemOnceWithItsLabelAndItsKey) {
  Start(2);
  TestRank rank(*dispatcher_, NewJob("a", Range(100, 300)), 0, 4);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<SeenBatch> batches = rank.Epoch();
    EXPECT_EQ(batches.size(), 13U);  // 12 * 16 + 8
    EXPECT_EQ(Sorted(IdsOf(batches)), Numbers(100, 300));
    for (const SeenBatch& batch : batches) {
      EXPECT_EQ(batch.epoch, epoch);
      for (size_t i = 0; i < batch.ids.size(); ++i) {
        EXPECT_EQ(batch.items[i], (MadeItem{batch.ids[i], 7, epoch, 100 + 'a'}));
        EXPECT_EQ(batch.labels[i], static_cast<int64_t>(batch.ids[i] % 10));
      }
    }
  }
}

// The set is a part of the data set, so that nobody can skip what is the others' at once.
TEST_F(DispatcherTest, AStepIsWalkedOnceForAllRanks) {
  constexpr uint32_t kWorld = 4, kSlots = 2;
  Start(2);
  const auto job = NewJob("a", Range(100, 420), 4, kWorld);
  std::vector<std::unique_ptr<TestRank>> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    ranks.push_back(std::make_unique<TestRank>(*dispatcher_, job, rank, kSlots));
  std::vector<uint64_t> ids;
  for (int step = 0; step < 20; ++step) {
    for (const auto& rank : ranks) {
      const SeenBatch batch = rank->Next();
      ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
    }
  }
  EXPECT_EQ(Sorted(ids), Numbers(100, 420));
  dispatcher_->Look([&](const Dispatcher&) {
    EXPECT_LE(job->dealt.walks(), kWorld * kSlots + 20U + kSlots);  // its first steps once for each who joins
  });
}

// A walk of the data set to the first of them would take hours.
TEST_F(DispatcherTest, AFewItemsOfALargeDataSetComeAtOnce) {
  constexpr uint64_t kUniverse = uint64_t{1} << 50;
  Start(1);
  TestRank rank(*dispatcher_, NewJob("a", Range(1000, 1064)), 0, 2, "", kUniverse);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(Sorted(IdsOf(rank.Epoch())), Numbers(1000, 1064));
}

// Where the items of b lie, nobody finds in the time of a test.
TEST_F(DispatcherTest, AJobWhoseItemsAreFarApartHoldsUpNobody) {
  constexpr uint64_t kUniverse = uint64_t{1} << 62;
  Start(1);
  TestRank a(*dispatcher_, NewJob("a", Range(0, 600)), 0, 2, "", kUniverse);
  TestRank b(*dispatcher_, NewJob("b", Range(0, uint64_t{1} << 36)), 0, 2, "", kUniverse);
  EXPECT_EQ(Sorted(IdsOf(a.Epoch())), Numbers(0, 600));
  b.Leave();
  EXPECT_EQ(Sorted(IdsOf(a.Epoch())), Numbers(0, 600));
  TestRank c(*dispatcher_, NewJob("c", Range(0, uint64_t{1} << 36)), 0, 2, "", kUniverse);
  dispatcher_->Look([&](const Dispatcher& dispatcher) { EXPECT_EQ(dispatcher.ranks().size(), 2U); });
  a.Leave(), c.Leave();
  dispatcher_.reset();  // in the middle of it
}

// A step of 40,000 items, each four places from the next: it is dealt in slices, for both ranks.
TEST_F(DispatcherTest, WhatIsDealtInSlicesIsWhatOneRankWouldHave) {
  constexpr uint64_t kUniverse = 320'000, kItems = 80'000, kBatch = 20'000;
  Start(2);
  const auto job = NewJob("a", Range(0, kItems), kBatch, 2);
  sampling::Stream alone =
      *sampling::Stream::Create({.dataset = ItemSet::Below(kUniverse), .items = Range(0, kItems), .seed = job->seed});
  TestRank first(*dispatcher_, job, 0, 2, "", kUniverse), second(*dispatcher_, job, 1, 2, "", kUniverse);
  for (uint64_t step = 0; step < kItems / kBatch / 2; ++step) {
    for (TestRank* rank : {&first, &second}) {
      for (const uint64_t id : rank->Next().ids) ASSERT_EQ(id, alone.Next());
    }
  }
  EXPECT_EQ(alone.left(), 0U);
}

// 16 items at 1 ms of reading, on one thread.
TEST_F(DispatcherTest, ABatchSaysWhatItsItemsTook) {
  works_.on_read = [this](uint64_t) {
    for (const Nanos end = clock_.Now() + Nanos{1'000'000}; clock_.Now() < end;) {
    }
  };
  Start(1);
  TestRank rank(*dispatcher_, NewJob("a", Range(0, 160)), 0, 2);
  for (int i = 0; i < 10; ++i) {
    const SeenBatch batch = rank.Next();
    EXPECT_EQ(1U, batch.threads);
    EXPECT_GE(batch.read_ns, 16U * 1'000'000);
    EXPECT_GT(batch.decode_ns, 0U);
    EXPECT_GE(batch.busy_ns, batch.read_ns + batch.decode_ns);
    EXPECT_LE(batch.busy_ns, static_cast<uint64_t>(batch.filling_ns));
  }
  dispatcher_->Look([&](const Dispatcher& dispatcher) {
    const Times times = dispatcher.TimesNow();
    EXPECT_GE(times.read_ns, 160 * 1'000'000);
    EXPECT_GE(times.idle_ns, 0);
  });
}

// Two jobs that wait for the same items: what it took is of both.
TEST_F(DispatcherTest, WhatASharedItemTookIsTheTimeOfAllWhoWaitForIt) {
  works_.on_read = [this](uint64_t) {
    for (const Nanos end = clock_.Now() + Nanos{1'000'000}; clock_.Now() < end;) {
    }
  };
  Start(2);
  TestRank a(*dispatcher_, NewJob("a", Range(0, 320)), 0, 2), b(*dispatcher_, NewJob("b", Range(0, 320)), 0, 2);
  uint64_t read_ns = 0, items = 0;
  for (int i = 0; i < 20; ++i)
    for (TestRank* rank : {&a, &b}) {
      const SeenBatch batch = rank->Next();
      read_ns += batch.read_ns;
      items += batch.ids.size();
    }
  const Tally seen = tally();
  EXPECT_EQ(640U, items);
  EXPECT_GT(seen.waited, 0U);
  EXPECT_GE(read_ns, (320 + seen.waited / 2) * 1'000'000);
}

// Some items take longer, so with eight threads they are done in another order.
TEST_F(DispatcherTest, TheOrderOfCompletionDoesNotAlterTheOrderOfDelivery) {
  std::vector<std::vector<uint64_t>> seen;
  works_.on_read = [](uint64_t item) {
    for (uint64_t i = 0; i < (item % 7 == 0 ? 200 : 1); ++i) std::this_thread::yield();
  };
  for (const size_t threads : {1, 8}) {
    Start(threads);
    TestRank rank(*dispatcher_, NewJob("a", Range(0, 300)), 0, 3);
    seen.push_back(IdsOf(rank.Epoch()));
  }
  EXPECT_EQ(seen[0], seen[1]);
}

TEST_F(DispatcherTest, JobsWithOverlappingSetsHaveTheUnionPrepared) {
  Start(2);
  const std::shared_ptr<Job> jobs[] = {NewJob("a", Range(0, 400)), NewJob("b", Range(100, 500)),
                                       NewJob("c", Range(200, 600))};
  std::vector<std::unique_ptr<TestRank>> ranks;
  for (const auto& job : jobs) ranks.push_back(std::make_unique<TestRank>(*dispatcher_, job, 0, 2));
  std::vector<std::vector<uint64_t>> ids(3);
  for (int step = 0; step < 25; ++step)
    for (size_t i = 0; i < 3; ++i) {
      const SeenBatch batch = ranks[i]->Next();
      ids[i].insert(ids[i].end(), batch.ids.begin(), batch.ids.end());
    }
  EXPECT_EQ(Sorted(ids[0]), Numbers(0, 400));
  EXPECT_EQ(Sorted(ids[1]), Numbers(100, 500));
  EXPECT_EQ(Sorted(ids[2]), Numbers(200, 600));
  const uint64_t ahead = 3 * 2 * 16;  // of the next epoch, at most
  EXPECT_GE(works_.preparations(), 600U);
  EXPECT_LE(works_.preparations(), 600U + ahead);
}

TEST_F(DispatcherTest, EachJobHasItsOwnKeyOnASharedDecode) {
  Start(1);
  TestRank first(*dispatcher_, NewJob("a", Range(0, 64)), 0, 2), second(*dispatcher_, NewJob("b", Range(0, 64)), 0, 2);
  const SeenBatch a = first.Next(), b = second.Next();
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.items[0].job, 100U + 'a');
  EXPECT_EQ(b.items[0].job, 100U + 'b');
}

TEST_F(DispatcherTest, ACorruptItemIsSkippedAtTheSamePlaceForAll) {
  works_.corrupt = {3, 50, 51};
  Start(3);
  TestRank first(*dispatcher_, NewJob("a", Range(0, 64)), 0, 2), second(*dispatcher_, NewJob("b", Range(0, 64)), 0, 2);
  for (int step = 0; step < 4; ++step) {
    const SeenBatch a = first.Next(), b = second.Next();
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.skipped, b.skipped);
    EXPECT_EQ(a.ids.size() + a.skipped.size(), 16U);
    for (size_t i = 0; i < a.ids.size(); ++i) EXPECT_EQ(a.items[i].item, a.ids[i]);
    for (const uint64_t item : a.skipped) EXPECT_TRUE(works_.corrupt.contains(item));
  }
  dispatcher_->Look([](const Dispatcher& dispatcher) {
    ASSERT_EQ(dispatcher.corrupt().size(), 3U);
    EXPECT_NE(dispatcher.corrupt()[0].why.find("is broken"), std::string::npos);
  });
}

TEST_F(DispatcherTest, DamageThatNoJobSeesIsNone) {
  works_.in_part = {3, 50, 51};
  Start(2);
  TestRank first(*dispatcher_, NewJob("a", Range(0, 64)), 0, 2), second(*dispatcher_, NewJob("b", Range(0, 64)), 0, 2);
  for (int step = 0; step < 4; ++step) {
    const SeenBatch a = first.Next(), b = second.Next();
    EXPECT_EQ(a.ids.size(), 16U);
    EXPECT_EQ(b.ids, a.ids);
    for (size_t i = 0; i < a.ids.size(); ++i) EXPECT_EQ(b.items[i].item, a.ids[i]);
  }
  dispatcher_->Look([](const Dispatcher& dispatcher) { EXPECT_TRUE(dispatcher.corrupt().empty()); });
}

TEST_F(DispatcherTest, WhatCouldNotBeReadIsTriedAgain) {
  works_.unreadable = {7};
  int reads = 0;
  works_.on_read = [&](uint64_t item) {
    if (item == 7 && ++reads == 2) works_.unreadable.clear();
  };
  Start(1);
  TestRank rank(*dispatcher_, NewJob("a", Range(0, 32)), 0, 2);
  const auto skipped = [&] {
    std::vector<uint64_t> all;
    for (const SeenBatch& batch : rank.Epoch()) all.insert(all.end(), batch.skipped.begin(), batch.skipped.end());
    return all;
  };
  EXPECT_EQ(skipped(), std::vector<uint64_t>{7});
  EXPECT_TRUE(skipped().empty());
  dispatcher_->Look([](const Dispatcher& dispatcher) { EXPECT_EQ(dispatcher.corrupt().size(), 1U); });
}

TEST_F(DispatcherTest, ABatchOfCorruptItemsOnlyIsEmpty) {
  for (uint64_t item = 0; item < 32; ++item) works_.corrupt.insert(item);
  Start(2);
  TestRank rank(*dispatcher_, NewJob("a", Range(0, 32)), 0, 2);
  const std::vector<SeenBatch> batches = rank.Epoch();
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_TRUE(batches[0].ids.empty());
  ASSERT_EQ(batches[0].skipped.size(), 16U);
  for (const SeenBatch& batch : batches)
    EXPECT_EQ(batch.why, fmt::format("item {0}: item {0} is broken", batch.skipped[0]));
}

TEST_F(DispatcherTest, WhyABatchIsEmptyIsWhatIsWrongNow) {
  works_.unreadable = {0};
  Start(1);
  TestRank rank(*dispatcher_, NewJob("a", Range(0, 1), 1), 0, 2);
  EXPECT_EQ(rank.Take().why, "item 0: item 0 can't be read");
  rank.Take();  // the second slot; nobody reads until one is free
  dispatcher_->Look([&](const Dispatcher&) {
    works_.unreadable.clear();
    works_.corrupt = {0};
  });
  rank.Release();
  EXPECT_EQ(rank.Take().why, "item 0: item 0 is broken");
}

TEST_F(DispatcherTest, ABatchThatHasItemsSaysNothing) {
  for (uint64_t item = 0; item < 15; ++item) works_.corrupt.insert(item);
  Start(2);
  TestRank rank(*dispatcher_, NewJob("a", Range(0, 16)), 0, 2);
  const SeenBatch batch = rank.Next();
  EXPECT_EQ(batch.ids, std::vector<uint64_t>{15});
  EXPECT_EQ(batch.why, "");
}

// One, and then each ten times as many.
TEST_F(DispatcherTest, CorruptItemsAreLoggedNowAndThen) {
  for (uint64_t item = 0; item < 250; ++item) works_.corrupt.insert(item);
  testing::internal::CaptureStderr();
  Start(1);
  {
    TestRank rank(*dispatcher_, NewJob("a", Range(0, 250), 10), 0, 2);
    rank.Epoch();
    rank.Epoch();
  }
  dispatcher_ = nullptr;
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << said;
  for (const char* count : {"; 1 so far", "; 10 so far", "; 100 so far"}) EXPECT_THAT(said, testing::HasSubstr(count));
}

TEST_F(DispatcherTest, AJobThatTakesNothingHoldsNobodyUp) {
  Start(1);
  TestRank slow(*dispatcher_, NewJob("slow", Range(0, 600)), 0, 2),
      fast(*dispatcher_, NewJob("fast", Range(0, 600)), 0, 2);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(Sorted(IdsOf(fast.Epoch())), Numbers(0, 600));
  EXPECT_EQ(slow.rank().ticket, 2U);  // its ring, and nothing more
  EXPECT_EQ(slow.Next().ids.size(), 16U);
}

TEST_F(DispatcherTest, WhoLeavesInTheMiddleLeavesNothingBehind) {
  Start(3);
  TestRank stays(*dispatcher_, NewJob("stays", Range(0, 600)), 0, 2);
  std::vector<uint64_t> ids;
  for (int round = 0; round < 30; ++round) {
    TestRank leaves(*dispatcher_, NewJob("leaves", Range(0, 600)), 0, 4);
    if (round % 2 == 0) leaves.Take();
    leaves.Leave();
    const SeenBatch batch = stays.Next();
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
  const std::vector<uint64_t> rest = IdsOf(stays.Epoch());
  ids.insert(ids.end(), rest.begin(), rest.end());
  EXPECT_EQ(Sorted(ids), Numbers(0, 600));
}

TEST_F(DispatcherTest, RanksOfOneJobShareAnEpoch) {
  Start(4);
  const std::shared_ptr<Job> job = NewJob("a", Range(0, 500), 16, 3);
  std::vector<uint64_t> ids;
  for (uint32_t number = 0; number < 3; ++number) {
    TestRank rank(*dispatcher_, job, number, 2);
    const std::vector<SeenBatch> batches = rank.Epoch();
    EXPECT_EQ(batches.size(), 11U);  // 10 * 48 + 20
    const std::vector<uint64_t> own = IdsOf(batches);
    ids.insert(ids.end(), own.begin(), own.end());
  }
  EXPECT_EQ(Sorted(ids), Numbers(0, 500));
}

TEST_F(DispatcherTest, AJobGoesOnFromWhereItsBatchSaid) {
  Start(2);
  std::vector<SeenBatch> whole;
  {
    TestRank rank(*dispatcher_, NewJob("a", Range(0, 400)), 0, 3);
    whole = rank.Epoch();
  }
  const SeenBatch& stop = whole[9];
  TestRank again(*dispatcher_, NewJob("a", Range(0, 400)), 0, 2, stop.state);
  for (size_t step = 10; step < whole.size(); ++step) {
    const SeenBatch batch = again.Next();
    EXPECT_EQ(batch.ids, whole[step].ids);
    EXPECT_EQ(batch.items, whole[step].items);
  }
}

TEST_F(DispatcherTest, WithoutACacheEverythingIsStillRight) {
  Start(3, 0);
  TestRank first(*dispatcher_, NewJob("a", Range(0, 200)), 0, 2),
      second(*dispatcher_, NewJob("b", Range(100, 300)), 0, 2);
  std::vector<uint64_t> a, b;
  for (int step = 0; step < 13; ++step) {
    for (const uint64_t id : first.Next().ids) a.push_back(id);
    for (const uint64_t id : second.Next().ids) b.push_back(id);
  }
  EXPECT_EQ(Sorted(a), Numbers(0, 200));
  EXPECT_EQ(Sorted(b), Numbers(100, 300));
}

TEST_F(DispatcherTest, TheBudgetHolds) {
  works_.image_bytes = 10'000;
  Start(4, 95'000);
  TestRank first(*dispatcher_, NewJob("a", Range(0, 400)), 0, 3),
      second(*dispatcher_, NewJob("b", Range(50, 600)), 0, 3);
  for (int step = 0; step < 60; ++step) {
    first.Next();
    if (step % 3 == 0) second.Next();
  }
  dispatcher_->Look([](const Dispatcher& dispatcher) {
    EXPECT_LE(dispatcher.cache().peak(), 95'000U);
    EXPECT_GE(dispatcher.cache().peak(), 80'000U);  // it is used
  });
}

// Each takes two fifths of the budget while it is made, so two are made at once and no third.
TEST_F(DispatcherTest, WhatIsInWorkIsWithinTheBudgetToo) {
  works_.work_bytes = 4 * Maker::kUnasked;
  works_.image_bytes = 1000;
  Start(4, 10 * Maker::kUnasked);
  TestRank rank(*dispatcher_, NewJob("a", Range(0, 300)), 0, 3);
  EXPECT_EQ(Sorted(IdsOf(rank.Epoch())), Numbers(0, 300));
  dispatcher_->Look([](const Dispatcher& dispatcher) {
    EXPECT_LE(dispatcher.cache().peak(), 10 * Maker::kUnasked);
    EXPECT_EQ(dispatcher.tally().beyond, 0U);
  });
}

// The cache is full of images when it is read.
TEST_F(DispatcherTest, ALargeFileHasRoomBeforeItIsRead) {
  constexpr uint64_t kBudget = 10 * Maker::kUnasked;
  works_.image_bytes = Maker::kUnasked / 4;
  works_.file_bytes = 3 * Maker::kUnasked;
  std::atomic<uint64_t> most = 0;
  works_.on_read = [&](uint64_t) {
    dispatcher_->Look([&](const Dispatcher& seen) {
      uint64_t kept = seen.cache().totals(Form::kDecoded).bytes, before = most;
      while (kept > before && !most.compare_exchange_weak(before, kept)) {
      }
    });
  };
  Start(1, kBudget);
  TestRank first(*dispatcher_, NewJob("a", Range(0, 200)), 0, 3),
      second(*dispatcher_, NewJob("b", Range(0, 200)), 0, 3);
  for (int step = 0; step < 20; ++step) {
    first.Next();
    second.Next();
  }
  EXPECT_GE(most, kBudget / 2);
  EXPECT_LE(most + works_.file_bytes, kBudget);
}

// Of what is known to be large, no more is read at once than there is room for: two of eight threads; what can never
// fit, one after the other.
TEST_F(DispatcherTest, LargeFilesWaitForRoomBeforeTheyAreRead) {
  for (const auto& [file_bytes, at_once] : {std::pair{4 * Maker::kUnasked, 2}, std::pair{40 * Maker::kUnasked, 1}}) {
    works_.file_bytes = file_bytes;
    std::atomic<int> reading = 0, most = 0;
    works_.on_read = [&](uint64_t) {
      const int now = ++reading;
      for (int before = most; now > before && !most.compare_exchange_weak(before, now);) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // so that threads that don't wait would be seen
      --reading;
    };
    Start(8, 10 * Maker::kUnasked);
    TestRank rank(*dispatcher_, NewJob("a", Range(0, 300)), 0, 3);
    EXPECT_EQ(Sorted(IdsOf(rank.Epoch())), Numbers(0, 300));
    EXPECT_LE(most, at_once);
    rank.Leave();
    dispatcher_.reset();
  }
}

TEST_F(DispatcherTest, WhatCanNeverFitIsMadeAllTheSameAndCounted) {
  works_.work_bytes = 4 * Maker::kUnasked;
  Start(4, 3 * Maker::kUnasked);
  TestRank rank(*dispatcher_, NewJob("a", Range(0, 100)), 0, 3);
  EXPECT_EQ(Sorted(IdsOf(rank.Epoch())), Numbers(0, 100));
  EXPECT_GE(tally().beyond, 100U);
  EXPECT_EQ(tally().beyond_bytes, 4 * Maker::kUnasked + sizeof(uint64_t));
}

}  // namespace
}  // namespace lockstep::feed
