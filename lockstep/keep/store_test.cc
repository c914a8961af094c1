#include "lockstep/keep/store.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>

#include "lockstep/keep/test_part.h"

namespace lockstep::keep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr uint64_t kMeta = 1000;
constexpr Bytes kPlenty{uint64_t{1} << 40};

checkpoint::Point At(int64_t step, uint64_t epoch = 1) { return {EpochId(epoch), StepId(step)}; }

// What a connection does. Answers how many bytes had to come.
uint64_t Keep(Store& store, const std::shared_ptr<const OwnPart>& part) {
  Incoming incoming = store.Begin(part->outline).value();
  const std::vector<Place> places = PlacesOf(part->outline.slots);
  uint64_t sent = 0;
  for (const size_t chunk : incoming.missing()) {
    const auto content = part->contents[places[chunk].slot].subspan(places[chunk].offset, places[chunk].bytes);
    std::copy(content.begin(), content.end(), incoming.Room(chunk).begin());
    EXPECT_TRUE(incoming.Accept(chunk));
    sent += content.size();
  }
  store.Finish(std::move(incoming));
  return sent;
}

std::vector<Content> Read(const Image& image) {
  std::vector<Content> slots;
  for (const SlotHeader& slot : image.outline.slots) slots.emplace_back(slot.bytes);
  for (size_t i = 0; i < image.places.size(); ++i) {
    const auto content = image.Content(i).value();
    const auto offset = static_cast<ptrdiff_t>(image.places[i].offset);
    std::copy(content.begin(), content.end(), slots[image.places[i].slot].begin() + offset);
  }
  return slots;
}

TEST(Outline, ChunksCoverEachSlotAndBeginAnewWithTheTensors) {
  const auto places = PlacesOf({{3 * kChunkBytes + 5, kChunkBytes + 1, 0}, {70, 70, 0}, {0, 0, 0}});
  std::vector<std::pair<uint64_t, uint64_t>> found;
  for (const Place& place : places) found.emplace_back(place.offset, place.bytes);
  // Slot 0: meta of 1 MiB + 1 aligned to 64, then 2 MiB + 5 - 64 of tensors.
  const uint64_t tensors = kChunkBytes + 64;
  EXPECT_THAT(found, ElementsAre(Pair(0, kChunkBytes), Pair(kChunkBytes, 64), Pair(tensors, kChunkBytes),
                                 Pair(tensors + kChunkBytes, kChunkBytes + 5 - 64), Pair(0, 70)));
}

TEST(Outline, WhatCanNotBeIsRefused) {
  Outline outline = Hashed(OfferOf(0, At(1), {RandomBytes(5000, 1)}, kMeta))->outline;
  EXPECT_TRUE(Validate(outline).ok());
  outline.chunks.pop_back();
  EXPECT_THAT(Message(Validate(outline)), HasSubstr("1 hashes for slots of 2 chunks"));
  outline.slots[0].meta_bytes = 5001;
  EXPECT_THAT(Message(Validate(outline)), HasSubstr("5001 of them before the tensors"));
  outline.slots[0].bytes = ~uint64_t{0};
  EXPECT_FALSE(Validate(outline).ok());
}

TEST(Store, GivesBackWhatWasKept) {
  Store store(kPlenty);
  const std::vector<Content> slots = {SlotOf(kMeta, 1, RandomBytes(3'000'000, 2)), SlotOf(kMeta, 3, {})};
  EXPECT_EQ(slots[0].size() + slots[1].size(), Keep(store, Hashed(OfferOf(1, At(7), slots, kMeta))));
  ASSERT_NE(nullptr, store.Find(1, At(7)));
  EXPECT_EQ(slots, Read(*store.Find(1, At(7))));
  EXPECT_EQ(nullptr, store.Find(0, At(7)));
  EXPECT_EQ(nullptr, store.Find(1, At(8)));
}

TEST(Store, EqualContentComesOnce) {
  Store store(kPlenty);
  const Content tensors = RandomBytes(2'500'000, 9), changed = RandomBytes(2'500'000, 10);
  const uint64_t meta = ls_align(kMeta);
  // Two ranks with the same tensors, what lies before them differs.
  const std::vector<Content> slots = {SlotOf(kMeta, 1, tensors), SlotOf(kMeta, 2, tensors)};
  EXPECT_EQ(2 * meta + tensors.size(), Keep(store, Hashed(OfferOf(0, At(1), slots, kMeta))));
  // The next step changes only the first one's.
  const std::vector<Content> next = {SlotOf(kMeta, 1, changed), SlotOf(kMeta, 2, tensors)};
  EXPECT_EQ(changed.size(), Keep(store, Hashed(OfferOf(0, At(2), next, kMeta))));
  EXPECT_EQ(slots, Read(*store.Find(0, At(1))));
  EXPECT_EQ(next, Read(*store.Find(0, At(2))));
}

TEST(Store, WhatOurRanksHoldOfTheSameCheckpointIsNotSent) {
  Store store(kPlenty);
  const Content tensors = RandomBytes(2'500'000, 9);
  const auto memory = std::make_shared<std::vector<Content>>(1, SlotOf(kMeta, 1, tensors));
  OwnPart own = OfferOf(1, At(4), *memory, kMeta);
  own.contents = {(*memory)[0]};
  own.mapping = memory;
  store.SetOwn(Hashed(own));
  const std::vector<Content> replica = {SlotOf(kMeta, 2, tensors)};
  EXPECT_EQ(ls_align(kMeta), Keep(store, Hashed(OfferOf(0, At(4), replica, kMeta))));
  EXPECT_EQ(replica, Read(*store.Find(0, At(4))));
  // Of another step, they may be written over at any time.
  EXPECT_EQ(replica[0].size() - ls_align(kMeta), Keep(store, Hashed(OfferOf(0, At(5), replica, kMeta))));
  (*memory)[0][2'000'000] ^= std::byte{1};
  const auto image = store.Find(0, At(4));
  const auto written_over = std::count_if(image->pieces.begin(), image->pieces.end(), [&](const Piece& piece) {
    return !image->Content(static_cast<size_t>(&piece - image->pieces.data())).ok();
  });
  EXPECT_EQ(1, written_over);
  EXPECT_EQ(replica, Read(*store.Find(0, At(5))));
}

TEST(Store, ContentThatIsNotWhatWasAnnouncedIsNotAccepted) {
  Store store(kPlenty);
  const auto part = Hashed(OfferOf(0, At(1), {RandomBytes(5000, 1)}, kMeta));
  Incoming incoming = store.Begin(part->outline).value();
  std::fill(incoming.Room(0).begin(), incoming.Room(0).end(), std::byte{7});
  EXPECT_FALSE(incoming.Accept(0));
  EXPECT_EQ(nullptr, store.Find(0, At(1)));
}

TEST(Store, GivesUpWhatRanksMayGiveUp) {
  Store store(kPlenty);
  for (const int64_t step : {1, 2, 3, 4}) Keep(store, Hashed(OfferOf(0, At(step), {RandomBytes(100, 1)}, 50)));
  store.GiveUp(At(2), -1, EpochId(1));
  EXPECT_THAT(store.Kept(), ElementsAre(Pair(0, At(2)), Pair(0, At(3)), Pair(0, At(4))));
  store.GiveUp(At(2), 3, EpochId(1));  // of this epoch nothing up to step 3 can become whole any more, but for 2
  EXPECT_THAT(store.Kept(), ElementsAre(Pair(0, At(2)), Pair(0, At(4))));
  store.GiveUp(At(2), 5, EpochId(2));  // of epoch 2, whatever it began from
  EXPECT_THAT(store.Kept(), ElementsAre(Pair(0, At(2)), Pair(0, At(4)))) << "nothing of it has come";
}

// Ranks go on from step 3, of which node 1 has not brought its part: should it be lost, step 2 is what is left.
TEST(Store, WhatWasKeptOutlivesTheStartOfTheNextEpoch) {
  Store store(Bytes{2 * kChunkBytes});
  Keep(store, Hashed(OfferOf(1, At(2), {RandomBytes(2 * kChunkBytes, 1)}, 0)));
  store.GiveUp(At(3), -1, EpochId(2));
  EXPECT_THAT(store.Kept(), ElementsAre(Pair(1, At(2))));
  store.GiveUp(At(3), -1, EpochId(3));  // epoch 2 saved nothing
  EXPECT_THAT(store.Kept(), ElementsAre(Pair(1, At(2))));
  Keep(store, Hashed(OfferOf(1, At(4, 3), {RandomBytes(2 * kChunkBytes, 2)}, 0)));
  EXPECT_THAT(store.Kept(), ElementsAre(Pair(1, At(4, 3)))) << "which needs the room";
}

TEST(Store, WhatIsKeptElsewhereOfAnEpochIsReasonToGiveUpToo) {
  Store store(kPlenty);
  Keep(store, Hashed(OfferOf(1, At(2), {RandomBytes(100, 1)}, 50)));
  store.GiveUp(At(4, 2), -1, EpochId(2));
  EXPECT_THAT(store.Kept(), IsEmpty());
}

TEST(Store, MemoryComesBackAndIsBounded) {
  Store store(Bytes{3 * kChunkBytes});
  Keep(store, Hashed(OfferOf(0, At(1), {RandomBytes(2 * kChunkBytes, 1)}, 0)));
  EXPECT_EQ(2 * kChunkBytes, store.bytes());
  const auto more = Hashed(OfferOf(0, At(2), {RandomBytes(2 * kChunkBytes, 2)}, 0));
  EXPECT_THAT(Message(store.Begin(more->outline).status()), HasSubstr("there is no room: 2.1 MB of 3.1 MB are in use"));
  EXPECT_EQ(2 * kChunkBytes, store.bytes());
  store.GiveUp(At(2), -1, EpochId(1));
  EXPECT_EQ(0u, store.bytes());
  Keep(store, more);
  EXPECT_THAT(store.Kept(), SizeIs(1));
  {
    const auto given_up = store.Begin(Hashed(OfferOf(0, At(3), {RandomBytes(500, 3)}, 0))->outline);
  }
  EXPECT_EQ(2 * kChunkBytes, store.bytes());
}

// Connections have threads of their own: what each finds free they may not all take.
TEST(Store, TheLimitHoldsForAllWhoComeAtOnce) {
  const auto part = Hashed(OfferOf(0, At(1), {RandomBytes(2 * kChunkBytes, 1)}, 0));
  constexpr int kThreads = 4, kRounds = 300;
  Store store(Bytes{3 * kChunkBytes});
  std::atomic<int> kept = 0;
  std::barrier round(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < kRounds; ++j) {
          round.arrive_and_wait();
          const auto incoming = store.Begin(part->outline);
          kept += incoming.ok() ? 1 : 0;
          round.arrive_and_wait();
        }
      });
    }
  }
  EXPECT_EQ(kRounds, kept);
  EXPECT_EQ(0u, store.bytes());
}

}  // namespace
}  // namespace lockstep::keep
