#include "lockstep/feed/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lockstep::feed {

void BoundHeap() {
  constexpr int kEnd = 16 << 20;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kOfItsOwn));
  mallopt(M_TRIM_THRESHOLD, kEnd);
  mallopt(M_ARENA_MAX, 1);  // each would keep as much
}

uint64_t AnonymousBytes() {
  uint64_t all = 0, resident = 0, shared = 0;  // pages
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  const int found = std::fscanf(file, "%lu %lu %lu", &all, &resident, &shared);
  std::fclose(file);
  return found == 3 ? (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

void HeapLimit::Hold(uint64_t coming) {
  const uint64_t on_top = coming_ += OnTop(coming);
  if (AnonymousBytes() + on_top <= above_) return;
  malloc_trim(0);
  above_ = std::max(limit_, AnonymousBytes() + kUnusedHeap);
}

}  // namespace lockstep::feed
