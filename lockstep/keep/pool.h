// Memory for chunks that came from others. It is used again and again, for memory that is touched for the first time
// costs ten times as much as a copy; and it is counted, for training needs the rest. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/keep/outline.h"

namespace lockstep::keep {

// Shared between the images that have this content in common; the last one gives it back to its pool.
using Chunk = std::shared_ptr<std::byte[]>;

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  // False: with so much more, the limit would be passed. Else it counts as in use, and is there to be taken.
  bool Reserve(uint64_t bytes, uint64_t limit) {
    uint64_t before = in_use_;
    do {
      if (bytes > limit || before > limit - bytes) return false;
    } while (!in_use_.compare_exchange_weak(before, before + bytes));
    return true;
  }
  // At least `bytes` of memory, at most a chunk's, of what was reserved; back in the pool, it no longer is.
  Chunk Take(uint64_t bytes) {
    if (bytes < kChunkBytes) {
      return Chunk(new std::byte[bytes], [self = shared_from_this(), bytes](std::byte* memory) {
        delete[] memory;
        self->in_use_ -= bytes;
      });
    }
    return Chunk(Whole(), [self = shared_from_this()](std::byte* memory) { self->Return(memory); });
  }
  uint64_t in_use() const { return in_use_; }

 private:
  std::byte* Whole() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return new std::byte[kChunkBytes];
    std::byte* memory = free_.back().release();
    free_.pop_back();
    return memory;
  }
  void Return(std::byte* memory) {
    const std::lock_guard lock(mutex_);
    free_.emplace_back(memory);
    in_use_ -= kChunkBytes;
  }

  std::mutex mutex_;  // guards free_
  std::vector<std::unique_ptr<std::byte[]>> free_;
  std::atomic<uint64_t> in_use_ = 0;
};

}  // namespace lockstep::keep
