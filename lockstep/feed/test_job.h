// For tests: items that say what they are, a maker that counts, and a job's end of its ring.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "lockstep/base/packets.h"
#include "lockstep/feed/dispatcher.h"

namespace lockstep::feed {

inline constexpr uint64_t kTestItems = 600;

struct MadeItem {
  uint64_t item, seed, epoch, job;
  bool operator==(const MadeItem&) const = default;
};

// What the makers of a test have in common.
struct Works {
  std::atomic<uint64_t> decoded{0}, cut{0}, prepared{0}, read{0};
  std::set<uint64_t> corrupt, in_part;  // in_part: damaged where nobody looks who wants but a part
  std::set<uint64_t> unreadable;        // not changed while a service runs but by on_read
  std::function<void(uint64_t item)> on_read = [](uint64_t) {};
  uint64_t image_bytes = 1000, work_bytes = 0;  // of an image; beside it, to decode one
  uint64_t file_bytes = 0;                      // as it is said before a file is read
  uint64_t preparations() const { return decoded + prepared; }
};

class CountingMaker final : public Maker {
 public:
  explicit CountingMaker(Works& works) : works_(works) {}
  uint64_t FileBytes(uint64_t) const override { return works_.file_bytes; }
  absl::Status Read(uint64_t item, prepare::Buffer& file) override {
    ++works_.read;
    works_.on_read(item);
    if (works_.unreadable.contains(item)) return Unavailable("item {} can't be read", item);
    file.Resize(sizeof item);
    std::memcpy(file.data(), &item, sizeof item);
    return absl::OkStatus();
  }
  absl::StatusOr<prepare::DecodeMemory> MemoryFor(prepare::Bytes) override {
    return prepare::DecodeMemory{works_.image_bytes + works_.work_bytes, works_.image_bytes, works_.work_bytes};
  }
  absl::Status Decode(prepare::Bytes file, prepare::Image& image) override {
    ++works_.decoded;
    image.buffer.Assign(file);
    if (works_.in_part.contains(ItemOf(file))) return DataLoss("item {} is broken in part", ItemOf(file));
    return Check(file);
  }
  absl::Status Cut(const prepare::Image& image, const prepare::Recipe&, const prepare::AugmentKey& key,
                   std::span<uint8_t> out) override {
    ++works_.cut;
    return Write(image.buffer.bytes(), key, out);
  }
  absl::Status Prepare(prepare::Bytes file, const prepare::Recipe&, const prepare::AugmentKey& key,
                       std::span<uint8_t> out) override {
    ++works_.prepared;
    LS_RETURN_IF_ERROR(Check(file));
    return Write(file, key, out);
  }

 private:
  static uint64_t ItemOf(prepare::Bytes file) {
    uint64_t item = 0;
    std::memcpy(&item, file.data(), sizeof item);
    return item;
  }
  absl::Status Check(prepare::Bytes file) const {
    return works_.corrupt.contains(ItemOf(file)) ? DataLoss("item {} is broken", ItemOf(file)) : absl::OkStatus();
  }
  static absl::Status Write(prepare::Bytes file, const prepare::AugmentKey& key, std::span<uint8_t> out) {
    const MadeItem made{ItemOf(file), key.seed, key.epoch, key.job};
    std::memcpy(out.data(), &made, sizeof made);
    return absl::OkStatus();
  }

  Works& works_;
};

// Stands still until told otherwise, and may be read by any thread meanwhile.
class TestClock final : public Clock {
 public:
  Nanos Now() const override { return Nanos{now_}; }
  Nanos WallNow() const override { return Now(); }
  void Set(int64_t ns) { now_ = ns; }

 private:
  std::atomic<int64_t> now_{0};
};

// A batch as a job sees it.
struct SeenBatch {
  uint64_t epoch = 0, position = 0, cursor = 0, step = 0;
  std::string state;
  bool last = false;
  std::vector<MadeItem> items;
  std::vector<uint64_t> ids, skipped;
  std::vector<int64_t> labels;
  uint64_t read_ns = 0, decode_ns = 0, busy_ns = 0, threads = 0;
  int64_t filling_ns = 0;
  std::string why;
};

class TestRank {
 public:
  TestRank(Dispatcher& dispatcher, std::shared_ptr<Job> job, uint32_t number, uint32_t slots,
           const std::string& state = "", uint64_t universe = kTestItems, Nanos now = {})
      : dispatcher_(dispatcher),
        rank_(new Rank{job,
                       number,
                       {},
                       *Ring::Create({slots, static_cast<uint32_t>(job->cut.batch), sizeof(MadeItem)}),
                       StreamOf(dispatcher, *job, number, state, universe, now),
                       0,
                       0,
                       {},
                       {},
                       false}) {
    const Fd fd = rank_->ring.TakeFd();
    bytes_ = RingBytes(rank_->ring.shape());
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    auto ends = MakeSocketPair();
    service_ = std::move(ends->first);
    job_ = std::move(ends->second);
    dispatcher_.Add(rank_);
  }
  ~TestRank() {
    Leave();
    munmap(memory_, bytes_);
  }
  void Leave() {
    if (rank_ != nullptr) dispatcher_.Remove(rank_);
    rank_ = nullptr;
  }
  // Waits for the next batch; it is kept until Release().
  SeenBatch Take() {
    constexpr int kLongMs = 60'000;
    slot_ = ls_feed_await(Memory(), ticket_++, job_.get(), kLongMs);
    const std::byte* slot =
        static_cast<std::byte*>(memory_) + LS_FEED_ALIGN + static_cast<uint64_t>(slot_) * Memory()->slot_stride;
    const auto& batch = *reinterpret_cast<const ls_feed_batch*>(slot);
    const auto* ids = reinterpret_cast<const uint64_t*>(slot + sizeof batch);
    const auto* labels = reinterpret_cast<const int64_t*>(ids + Memory()->capacity);
    const auto* items = reinterpret_cast<const MadeItem*>(slot + Memory()->payload_offset);
    return {batch.epoch,
            batch.position,
            batch.cursor,
            batch.step,
            batch.state,
            batch.last != 0,
            {items, items + batch.items},
            {ids, ids + batch.items},
            {ids + batch.items, ids + batch.items + batch.skipped},
            {labels, labels + batch.items},
            batch.read_ns,
            batch.decode_ns,
            batch.busy_ns,
            batch.threads,
            batch.filled_ns - batch.began_ns,
            {reinterpret_cast<const char*>(items), batch.why_bytes}};
  }
  void Release() {
    ls_feed_release(Memory(), static_cast<uint32_t>(slot_), job_.get());
    char byte = 0;
    if (recv(service_.get(), &byte, 1, MSG_DONTWAIT) == 1) dispatcher_.Refill(rank_);
  }
  SeenBatch Next() {
    SeenBatch batch = Take();
    Release();
    return batch;
  }
  // The rest of the epoch.
  std::vector<SeenBatch> Epoch() {
    std::vector<SeenBatch> batches;
    do batches.push_back(Next());
    while (!batches.back().last);
    return batches;
  }
  // The set of a test's job is a range, which it has in its terms.
  static sampling::Stream StreamOf(const Dispatcher& dispatcher, Job& job, uint32_t number, const std::string& state,
                                   uint64_t universe, Nanos now) {
    sampling::Stream stream = *sampling::Stream::Create({.dataset = sampling::ItemSet::Below(universe),
                                                         .items = *sampling::ParseItemSet(job.terms, {"test"}),
                                                         .seed = job.seed});
    dispatcher.Look([&](const Dispatcher&) {
      if (state.empty()) {
        stream.GoTo(job.epochs.First(stream, {}, now));
      } else {
        EXPECT_TRUE(stream.Load(state).ok());
        EXPECT_TRUE(job.epochs.GoOn(stream, number, dispatcher.IsUntouched(job), now));
      }
    });
    return stream;
  }
  Rank& rank() { return *rank_; }

 private:
  ls_feed_ring* Memory() const { return static_cast<ls_feed_ring*>(memory_); }

  Dispatcher& dispatcher_;
  std::shared_ptr<Rank> rank_;
  Fd service_, job_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  uint64_t ticket_ = 0;
  int slot_ = -1;
};

}  // namespace lockstep::feed
