// A job's end of its ring, as Python uses it: batches that are lent, and tensors of them.
#include "lockstep/client/feed_lease.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "lockstep/base/packets.h"
#include "lockstep/feed/ring.h"

namespace lockstep::feed {
namespace {

constexpr RingShape kShape{.slots = 2, .capacity = 5, .item_bytes = 2 * 3 * 4};
constexpr int kLongMs = 60'000;

// Of github.com/dmlc/dlpack, dlpack.h: what PyTorch and NumPy take.
struct ManagedTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};
static_assert(sizeof(ManagedTensor) == 64);

class LeaseTest : public testing::Test {
 protected:
  LeaseTest() : fd_(ring_.TakeFd()) {
    auto ends = MakeSocketPair();
    service_ = std::move(ends->first);
    job_ = std::move(ends->second);
    lender_ = ls_feed_open(fd_.get(), job_.get());
  }
  ~LeaseTest() override {
    if (lender_ != nullptr) ls_feed_close(lender_);
  }
  // Batch `ticket`, whose items are full of its number.
  void Fill(uint64_t ticket, uint32_t items = 5) {
    const uint32_t slot = *ring_.TakeFree();
    const SlotView view = ring_.Slot(slot);
    *view.batch = {};
    view.batch->ticket = ticket;
    view.batch->items = items;
    std::memset(view.payload, static_cast<int>(ticket), kShape.capacity * kShape.item_bytes);
    ring_.Publish(slot, ticket);
  }
  uint32_t Take(uint64_t ticket) {
    const int slot = ls_feed_take(lender_, ticket, kLongMs, &head_);
    EXPECT_GE(slot, 0);
    return static_cast<uint32_t>(slot);
  }
  ManagedTensor* Tensor(uint32_t slot, uint64_t ticket) {
    // (N, 4, 2, 3) of rows of 2 x 3 pixels of 4 bytes.
    const ls_feed_view view{PayloadOffset(kShape), 1, 8, 0, 4, {0, 4, 2, 3, 0, 0, 0, 0}, {24, 1, 12, 4, 0, 0, 0, 0}};
    return static_cast<ManagedTensor*>(ls_feed_tensor(lender_, slot, ticket, &view));
  }
  int Result(uint64_t ticket) { return ls_feed_take(lender_, ticket, 0, &head_); }

  Ring ring_ = *Ring::Create(kShape);
  Fd fd_, service_, job_;
  ls_feed_lender* lender_ = nullptr;
  ls_feed_batch head_{};
};

TEST_F(LeaseTest, ATensorIsAViewOfTheSlot) {
  Fill(0, 3);
  const uint32_t slot = Take(0);
  EXPECT_EQ(head_.items, 3U);
  ManagedTensor* tensor = Tensor(slot, 0);
  EXPECT_EQ(tensor->data, ls_feed_memory(lender_) + LS_FEED_ALIGN + slot * SlotStride(kShape) + PayloadOffset(kShape));
  EXPECT_EQ(std::vector<int64_t>(tensor->shape, tensor->shape + 4), (std::vector<int64_t>{3, 4, 2, 3}));
  EXPECT_EQ(std::vector<int64_t>(tensor->strides, tensor->strides + 4), (std::vector<int64_t>{24, 1, 12, 4}));
  EXPECT_EQ(tensor->device_type, 1);  // kDLCPU
  EXPECT_EQ(tensor->code, 1);         // kDLUInt
  EXPECT_EQ(tensor->bits, 8);
  EXPECT_EQ(tensor->lanes, 1);
  EXPECT_EQ(tensor->byte_offset, 0U);
  tensor->deleter(tensor);
  ls_feed_drop(lender_, slot, 0);
}

TEST_F(LeaseTest, ASlotGoesBackWithTheLastShare) {
  Fill(0);
  const uint32_t slot = Take(0);
  ManagedTensor *one = Tensor(slot, 0), *other = Tensor(slot, 0);
  one->deleter(one);
  ls_feed_drop(lender_, slot, 0);
  EXPECT_EQ(ring_.Held(), 1U);
  ls_feed_drop_tensor(other);
  EXPECT_EQ(ring_.Held(), 0U);
}

TEST_F(LeaseTest, WhatIsGivenBackAndLentAnewIsNotDroppedByOldShares) {
  Fill(0);
  const uint32_t slot = Take(0);
  ManagedTensor* old = Tensor(slot, 0);
  ls_feed_give_back(lender_, slot, 0);
  EXPECT_EQ(ring_.Held(), 0U);
  Fill(1);
  ASSERT_EQ(Take(1), slot);
  ls_feed_drop(lender_, slot, 0);
  old->deleter(old);
  ls_feed_give_back(lender_, slot, 0);
  EXPECT_EQ(ring_.Held(), 1U);
  ls_feed_drop(lender_, slot, 1);
  EXPECT_EQ(ring_.Held(), 0U);
}

TEST_F(LeaseTest, SaysWhyThereIsNoBatch) {
  EXPECT_EQ(Result(0), LS_FEED_NOT_YET);
  Fill(0);
  Fill(1);
  const uint32_t first = Take(0), kept = Take(1);
  EXPECT_EQ(Result(2), LS_FEED_ALL_LENT);
  ls_feed_drop(lender_, kept, 1);
  EXPECT_EQ(Result(2), LS_FEED_NOT_YET);
  Fill(2);
  service_.Close();
  EXPECT_EQ(Result(2), static_cast<int>(kept));
  ls_feed_drop(lender_, kept, 2);
  EXPECT_EQ(Result(3), LS_FEED_GONE);
  ls_feed_drop(lender_, first, 0);
}

TEST_F(LeaseTest, ASlotThatHoldsNonsenseIsNotLent) {
  Fill(0);
  ring_.Slot(0).batch->ticket = 7;
  EXPECT_EQ(Result(0), LS_FEED_DAMAGED);
  ring_.Slot(0).batch->ticket = 0;
  ring_.Slot(0).batch->skipped = 1;  // beside as many items as fit
  EXPECT_EQ(Result(0), LS_FEED_DAMAGED);
  ring_.Slot(0).batch->skipped = 0;
  ASSERT_EQ(Result(0), 0);
  ls_feed_drop(lender_, 0, 0);
}

TEST_F(LeaseTest, TheMappingStaysAsLongAsATensorDoes) {
  Fill(0);
  const uint32_t slot = Take(0);
  ManagedTensor* tensor = Tensor(slot, 0);
  std::memset(ring_.Slot(slot).payload, 42, 24);
  ls_feed_drop(lender_, slot, 0);
  ls_feed_close(lender_);
  lender_ = nullptr;
  EXPECT_EQ(static_cast<const char*>(tensor->data)[23], 42);
  tensor->deleter(tensor);
  EXPECT_EQ(ring_.Held(), 0U);
}

TEST_F(LeaseTest, TheServiceIsToldOfAFreeSlotUntilItIsHungUp) {
  const auto told = [&] {
    char byte = 0;
    return recv(service_.get(), &byte, 1, MSG_DONTWAIT) == 1;
  };
  Fill(0);
  Fill(1);
  ring_.AskForSlot();
  const uint32_t first = Take(0), second = Take(1);
  ls_feed_drop(lender_, first, 0);
  EXPECT_TRUE(told());
  ring_.AskForSlot();
  ls_feed_hang_up(lender_);
  ls_feed_drop(lender_, second, 1);
  EXPECT_FALSE(told());
}

TEST_F(LeaseTest, AForkHasNoSay) {
  Fill(0);
  const uint32_t slot = Take(0);
  ManagedTensor* tensor = Tensor(slot, 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = Result(1) == LS_FEED_FORKED;
    tensor->deleter(tensor);
    ls_feed_drop(lender_, slot, 0);
    ls_feed_close(lender_);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ring_.Held(), 1U);
  tensor->deleter(tensor);
  ls_feed_drop(lender_, slot, 0);
  EXPECT_EQ(ring_.Held(), 0U);
}

TEST_F(LeaseTest, ManyThreadsDropShares) {
  Fill(0);
  const uint32_t slot = Take(0);
  std::vector<ManagedTensor*> tensors;
  for (int i = 0; i < 800; ++i) tensors.push_back(Tensor(slot, 0));
  {
    std::vector<std::jthread> threads;
    for (size_t thread = 0; thread < 8; ++thread)
      threads.emplace_back([&, thread] {
        for (size_t i = thread; i < tensors.size(); i += 8) tensors[i]->deleter(tensors[i]);
      });
  }
  EXPECT_EQ(ring_.Held(), 1U);
  ls_feed_drop(lender_, slot, 0);
  EXPECT_EQ(ring_.Held(), 0U);
}

TEST(Lender, OpensNothingElse) {
  Ring made = *Ring::Create(kShape);
  const Fd good = made.TakeFd();
  ls_feed_ring header;
  ASSERT_EQ(pread(good.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  const auto opens = [&](const auto& change, size_t bytes) {
    ls_feed_ring changed = header;
    change(changed);
    const Fd fd(memfd_create("bent", MFD_CLOEXEC));
    EXPECT_EQ(pwrite(fd.get(), &changed, sizeof changed, 0), static_cast<ssize_t>(sizeof changed));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    ls_feed_lender* lender = ls_feed_open(fd.get(), -1);
    if (lender != nullptr) ls_feed_close(lender);
    return lender != nullptr;
  };
  const size_t bytes = RingBytes(kShape);
  EXPECT_TRUE(opens([](ls_feed_ring&) {}, bytes));
  EXPECT_FALSE(opens([](ls_feed_ring& ring) { ring.magic = 0; }, bytes));
  EXPECT_FALSE(opens([](ls_feed_ring& ring) { ring.version = 2; }, bytes));
  EXPECT_FALSE(opens([](ls_feed_ring& ring) { ring.slots = 0; }, bytes));
  EXPECT_FALSE(opens([](ls_feed_ring& ring) { ring.slots = 33; }, size_t{1} << 30));
  EXPECT_FALSE(opens([](ls_feed_ring& ring) { ring.slot_stride = ~uint64_t{0} / 2; }, bytes));
  EXPECT_FALSE(opens([](ls_feed_ring& ring) { ring.capacity = 1'000'000'000; }, bytes));
  EXPECT_FALSE(opens([](ls_feed_ring& ring) { ring.payload_offset = 1 << 20; }, bytes));
  EXPECT_FALSE(opens([](ls_feed_ring&) {}, bytes - 1));
  EXPECT_FALSE(opens([](ls_feed_ring&) {}, 100));
  EXPECT_EQ(ls_feed_open(-1, -1), nullptr);
}

}  // namespace
}  // namespace lockstep::feed
