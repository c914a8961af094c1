// What a callback of our collectors costs the thread that makes it: the NCCL plugin as NCCL calls it, and the trail's
// own operations. Each call is timed by the time stamp counter; what two readings of it cost alone is taken off. Prints
// JSON: sorted samples in ns of each call.
#include <dlfcn.h>
#include <x86intrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/collect/nccl_abi.h"
#include "lockstep/record/trail.h"

namespace {

constexpr int kRounds = 20'000, kSteps = 4;  // of a proxy op

uint64_t Ticks() {
  unsigned unused;
  return __rdtscp(&unused);
}

double NsPerTick() {
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t ticks = Ticks();
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200)) {
  }
  const auto took = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin);
  return took.count() / static_cast<double>(Ticks() - ticks);
}

std::map<std::string, std::vector<double>> samples;

template <typename Call>
void Time(const char* name, Call call) {
  const uint64_t begin = Ticks();
  call();
  const uint64_t end = Ticks();
  samples[name].push_back(static_cast<double>(end - begin));
}

struct Descriptor {
  uint64_t type;
  uint64_t parent;
  int32_t rank, padding;
  uint8_t rest[88];
};

void TimePlugin(const nccl_profiler& plugin) {
  void* context = nullptr;
  int mask = 0;
  reinterpret_cast<nccl_init_5>(plugin.init)(&context, 77, &mask, "dp", 2, 4, 1, nullptr);
  const char* name = "AllReduce";
  const auto pid = static_cast<int32_t>(getpid());
  const int32_t sends = 1;
  for (int i = 0; i < kRounds; ++i) {
    void *coll, *proxy, *step;
    Descriptor descriptor{NCCL_COLL, 0, 1, 0, {}};
    std::memcpy(reinterpret_cast<char*>(&descriptor) + NCCL_AT_COLL_FUNC_4, &name, sizeof name);
    Time("start of a collective", [&] { plugin.start_event(context, &coll, &descriptor); });
    Time("stop of a collective", [&] { plugin.stop_event(coll); });
    descriptor = {NCCL_PROXY_OP, reinterpret_cast<uint64_t>(coll), 1, 0, {}};
    std::memcpy(reinterpret_cast<char*>(&descriptor) + NCCL_AT_PROXY_PID, &pid, sizeof pid);
    std::memcpy(reinterpret_cast<char*>(&descriptor) + NCCL_AT_PROXY_IS_SEND, &sends, sizeof sends);
    Time("start of a proxy op", [&] { plugin.start_event(context, &proxy, &descriptor); });
    descriptor = {NCCL_PROXY_STEP, reinterpret_cast<uint64_t>(proxy), 1, 0, {}};
    const uint64_t bytes = 4096;
    for (int number = 0; number < kSteps; ++number) {
      Time("start of a step", [&] { plugin.start_event(context, &step, &descriptor); });
      for (const int state : {NCCL_SEND_GPU_WAIT, NCCL_SEND_PEER_WAIT, NCCL_SEND_WAIT})
        Time("state of a step", [&] { plugin.record_event_state(step, state, &bytes); });
      Time("stop of a step", [&] { plugin.stop_event(step); });
    }
    Time("stop of a proxy op, which ends the collective", [&] { plugin.stop_event(proxy); });
  }
}

}  // namespace

int main(int count, char** arguments) {
  void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : nullptr;
  const auto* plugin = library == nullptr ? nullptr : static_cast<nccl_profiler*>(dlsym(library, "ncclProfiler_v5"));
  if (plugin == nullptr) {
    std::cerr << "usage: LOCKSTEP_TRAILS=DIR collect_path liblockstep-nccl-profiler.so\n";
    return 2;
  }
  for (int i = 0; i < kRounds; ++i) Time("nothing", [] { asm volatile("" ::: "memory"); });
  TimePlugin(*plugin);
  const double ns = NsPerTick();
  std::sort(samples["nothing"].begin(), samples["nothing"].end());
  const double nothing = samples["nothing"][kRounds / 2];
  nlohmann::json answer;
  for (auto& [name, ticks] : samples) {
    std::sort(ticks.begin(), ticks.end());
    for (double& one : ticks) one = std::max(0.0, one - nothing) * ns;
    answer[name] = ticks;
  }
  std::cout << answer.dump() << '\n';
}
