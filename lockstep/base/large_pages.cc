#include "lockstep/base/large_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace lockstep {

void AdviseLargePages(void* begin, size_t bytes) {
  constexpr uintptr_t kLarge = 2 << 20;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + kLarge - 1) / kLarge * kLarge, end = (address + bytes) / kLarge * kLarge;
  if (first < end) madvise(static_cast<char*>(begin) + (first - address), end - first, MADV_HUGEPAGE);
}

}  // namespace lockstep
