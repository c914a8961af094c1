#include "lockstep/probe/cores.h"

#include <fmt/core.h>
#include <pthread.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "lockstep/base/file.h"

namespace lockstep::probe {
namespace {

constexpr int kMostCores = 4096;
struct SetDeleter {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CoreSet = std::unique_ptr<cpu_set_t, SetDeleter>;
const size_t kSetBytes = CPU_ALLOC_SIZE(kMostCores);

CoreSet EmptySet() {
  CoreSet set(CPU_ALLOC(kMostCores));
  CPU_ZERO_S(kSetBytes, set.get());
  return set;
}

// Where pinning is refused the work is done all the same.
void PinThisThread(int core) {
  const CoreSet set = EmptySet();
  CPU_SET_S(static_cast<size_t>(core), kSetBytes, set.get());
  pthread_setaffinity_np(pthread_self(), kSetBytes, set.get());
}

}  // namespace

std::vector<int> AllowedCores() {
  const CoreSet set = EmptySet();
  std::vector<int> cores;
  if (sched_getaffinity(0, kSetBytes, set.get()) == 0) {
    for (int core = 0; core < kMostCores; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), kSetBytes, set.get())) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

void OnEachCore(const std::vector<int>& cores, const std::function<void(size_t i)>& run) {
  std::vector<std::jthread> threads;
  threads.reserve(cores.size());
  for (size_t i = 0; i < cores.size(); ++i) {
    threads.emplace_back([&, i] {
      PinThisThread(cores[i]);
      run(i);
    });
  }
}

uint64_t CacheBytes() {
  constexpr uint64_t kUnknown = 32 << 20;
  const int64_t told = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
  return told > 0 ? static_cast<uint64_t>(told) : kUnknown;
}

std::string IsaText() {
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

std::string ProcessorModel() {
  std::string model = IsaText();
  const absl::StatusOr<std::string> text = ReadFile("/proc/cpuinfo");
  const size_t key = text.ok() ? text->find("model name") : std::string::npos;
  if (const size_t colon = key == std::string::npos ? key : text->find(": ", key); colon != std::string::npos) {
    model = text->substr(colon + 2, text->find('\n', colon) - colon - 2);
  }
  return model;
}

std::string ProcessorText() { return fmt::format("{}, {} cores", ProcessorModel(), AllowedCores().size()); }

}  // namespace lockstep::probe
