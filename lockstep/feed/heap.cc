#include "lockstep/feed/heap.h"

#include <malloc.h>

namespace lockstep::feed {

void BoundHeap() {
  constexpr int kOfItsOwn = 4 << 20, kEnd = 2 << 20;
  mallopt(M_MMAP_THRESHOLD, kOfItsOwn);
  mallopt(M_TRIM_THRESHOLD, kEnd);
  mallopt(M_ARENA_MAX, 1);  // each would keep as much
}

void TrimHeap() {
  const struct mallinfo2 heap = mallinfo2();
  if (heap.fordblks > kUnusedHeap + heap.uordblks / 50) malloc_trim(0);
}

}  // namespace lockstep::feed
