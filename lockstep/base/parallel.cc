#include "lockstep/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace lockstep {

void ParallelFor(size_t count, size_t threads, const std::function<void(size_t i, size_t worker)>& run) {
  std::atomic<size_t> next = 0;
  const auto work = [&](size_t worker) {
    for (size_t i = next++; i < count; i = next++) run(i, worker);
  };
  std::vector<std::jthread> others;
  others.reserve(threads);
  for (size_t worker = 1; worker < std::min(threads, count); ++worker) others.emplace_back(work, worker);
  work(0);
}

}  // namespace lockstep
