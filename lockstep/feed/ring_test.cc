#include "lockstep/feed/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "lockstep/base/packets.h"

namespace lockstep::feed {
namespace {

constexpr RingShape kShape{.slots = 3, .capacity = 5, .item_bytes = 100};
constexpr int kLongMs = 60'000;

// The job's end: another mapping of the same memory.
class JobEnd {
 public:
  explicit JobEnd(Ring& ring) : bytes_(RingBytes(ring.shape())), fd_(ring.TakeFd()) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    auto ends = MakeSocketPair();
    service = std::move(ends->first);
    job = std::move(ends->second);
  }
  ~JobEnd() { munmap(memory_, bytes_); }
  ls_feed_ring* ring() { return static_cast<ls_feed_ring*>(memory_); }
  int Await(uint64_t ticket, int timeout_ms) { return ls_feed_await(ring(), ticket, job.get(), timeout_ms); }
  void Release(int slot) { ls_feed_release(ring(), static_cast<uint32_t>(slot), job.get()); }
  bool IsAsked() {
    char byte = 0;
    return recv(service.get(), &byte, 1, MSG_DONTWAIT) == 1 && byte == 'r';
  }
  int fd() const { return fd_.get(); }

  Fd service, job;

 private:
  size_t bytes_;
  Fd fd_;
  void* memory_;
};

TEST(Ring, LaysSlotsOutInPagesOfTheirOwn) {
  EXPECT_EQ(PayloadOffset(kShape), 4096U);  // 128 + 5 * 16
  EXPECT_EQ(SlotStride(kShape), 8192U);
  EXPECT_EQ(RingBytes(kShape), 4096U + 3 * 8192U);
  EXPECT_EQ(PayloadOffset({.slots = 2, .capacity = 256, .item_bytes = 1}), 8192U);  // 128 + 256 * 16 = 4224
}

TEST(Ring, IsSealedAgainstOtherSizes) {
  Ring ring = *Ring::Create(kShape);
  JobEnd job(ring);
  EXPECT_NE(ftruncate(job.fd(), 1), 0);
  EXPECT_NE(fcntl(job.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(Ring, ABatchIsTheJobsUntilItReleasesIt) {
  Ring ring = *Ring::Create(kShape);
  JobEnd job(ring);
  EXPECT_EQ(job.Await(0, 0), LS_FEED_NOT_YET);
  const uint32_t slot = *ring.TakeFree();
  std::memset(ring.Slot(slot).payload, 7, 500);
  ring.Publish(slot, 0);
  ASSERT_EQ(job.Await(0, kLongMs), static_cast<int>(slot));
  const auto* seen = reinterpret_cast<const char*>(job.ring()) + LS_FEED_ALIGN + slot * SlotStride(kShape);
  EXPECT_EQ(seen[PayloadOffset(kShape) + 499], 7);
  EXPECT_EQ(ring.Held(), 1U);
  job.Release(static_cast<int>(slot));
  EXPECT_EQ(ring.Held(), 0U);
}

TEST(Ring, OneKeptBatchCostsOneSlotAndNoMore) {
  Ring ring = *Ring::Create(kShape);
  JobEnd job(ring);
  for (uint64_t ticket = 0; ticket < 100; ++ticket) {
    const std::optional<uint32_t> slot = ring.TakeFree();
    ASSERT_TRUE(slot) << ticket;
    ring.Publish(*slot, ticket);
    const int found = job.Await(ticket, kLongMs);
    ASSERT_GE(found, 0);
    if (ticket != 1) job.Release(found);  // batch 1 is kept
  }
  EXPECT_EQ(ring.Held(), 1U);
}

TEST(Ring, TheJobSaysOnceThatASlotIsFreeAndOnlyIfAsked) {
  Ring ring = *Ring::Create(kShape);
  JobEnd job(ring);
  for (uint64_t ticket = 0; ticket < 3; ++ticket) ring.Publish(*ring.TakeFree(), ticket);
  EXPECT_FALSE(ring.TakeFree());
  job.Release(job.Await(0, kLongMs));
  EXPECT_FALSE(job.IsAsked());
  ring.Publish(*ring.TakeFree(), 3);
  ring.AskForSlot();
  job.Release(job.Await(1, kLongMs));
  job.Release(job.Await(2, kLongMs));
  EXPECT_TRUE(job.IsAsked());
  EXPECT_FALSE(job.IsAsked());
}

TEST(Ring, AJobThatWaitsIsToldOfTheServicesEndAndWords) {
  Ring ring = *Ring::Create(kShape);
  JobEnd job(ring);
  ASSERT_TRUE(SendPacket(job.service.get(), "{}").ok());
  EXPECT_EQ(job.Await(0, kLongMs), LS_FEED_TOLD);
  ring.Publish(*ring.TakeFree(), 0);
  job.service.Close();
  EXPECT_GE(job.Await(0, kLongMs), 0);  // what it had filled is good
  EXPECT_EQ(job.Await(1, kLongMs), LS_FEED_TOLD);
  Ring empty = *Ring::Create(kShape);
  JobEnd other(empty);
  other.service.Close();
  EXPECT_EQ(other.Await(0, kLongMs), LS_FEED_GONE);
}

// A job that writes nonsense into its ring harms its own batches only.
TEST(Ring, TheServiceTrustsNothingThatTheJobWrites) {
  Ring ring = *Ring::Create(kShape);
  JobEnd job(ring);
  ring.Publish(*ring.TakeFree(), 0);
  std::mt19937_64 chance(1);
  auto* words = reinterpret_cast<uint64_t*>(job.ring());
  for (size_t i = 0; i < LS_FEED_ALIGN / sizeof(uint64_t); ++i) words[i] = chance();
  for (int i = 0; i < 10; ++i)
    if (const auto slot = ring.TakeFree()) ring.Publish(*slot, 1);
  EXPECT_LE(ring.Held(), 3U);
  EXPECT_EQ(RingBytes(ring.shape()), RingBytes(kShape));
}

TEST(Ring, ManyBatchesBetweenTwoThreadsInOrderAndWhole) {
  constexpr uint64_t kBatches = 20'000;
  Ring ring = *Ring::Create({.slots = 2, .capacity = 1, .item_bytes = 8});
  JobEnd job(ring);
  std::jthread service([&] {
    for (uint64_t ticket = 0; ticket < kBatches;) {
      if (const auto slot = ring.TakeFree()) {
        std::memcpy(ring.Slot(*slot).payload, &ticket, 8);
        ring.Publish(*slot, ticket++);
        continue;
      }
      ring.AskForSlot();
      if (const auto slot = ring.TakeFree()) {
        std::memcpy(ring.Slot(*slot).payload, &ticket, 8);
        ring.Publish(*slot, ticket++);
        continue;
      }
      fcntl(job.service.get(), F_SETFL, 0);
      char byte = 0;
      ASSERT_EQ(recv(job.service.get(), &byte, 1, 0), 1);
    }
  });
  for (uint64_t ticket = 0; ticket < kBatches; ++ticket) {
    const int slot = job.Await(ticket, kLongMs);
    ASSERT_GE(slot, 0) << ticket;
    uint64_t found = 0;
    const auto* at = reinterpret_cast<const std::byte*>(job.ring()) + LS_FEED_ALIGN +
                     static_cast<uint32_t>(slot) * SlotStride(ring.shape()) + PayloadOffset(ring.shape());
    std::memcpy(&found, at, 8);
    ASSERT_EQ(found, ticket);
    job.Release(slot);
  }
}

}  // namespace
}  // namespace lockstep::feed
