// The heap of the service's process, kept near to what is used of it: items of all sizes come and go, and what is freed
// is to be the system's again. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::feed {

// What the heap may hold unused.
inline constexpr uint64_t kUnusedHeap = 4 << 20;
inline constexpr uint64_t kOfItsOwn = 4 << 20;  // from so many bytes on a buffer is the system's by itself

// Once, before anything else runs. Photos of a usual size are not the system's: to get the memory of one from it costs
// a tenth of its decode.
void BoundHeap();
// Of this process, resident: heap and stacks, neither files nor what is shared.
uint64_t AnonymousBytes();

// A limit of that memory. What counts is what is resident: malloc's own figures count pages as unused that it has long
// given back. Hold() costs about 10 us unless it has to give something back.
class HeapLimit {
 public:
  explicit HeapLimit(uint64_t limit) : limit_(limit), above_(limit) {}
  // Before so many bytes are allocated: what is unused serves small ones, and large ones come on top of it. Those
  // become resident little by little, so they count until Came() says that they are there, or were given up.
  void Hold(uint64_t coming = 0);
  void Came(uint64_t coming) { coming_ -= OnTop(coming); }

 private:
  static uint64_t OnTop(uint64_t coming) { return coming >= kOfItsOwn ? coming : 0; }

  const uint64_t limit_;
  std::atomic<uint64_t> coming_ = 0;
  std::atomic<uint64_t> above_;  // higher than the limit while there is nothing more to give back
};

}  // namespace lockstep::feed
