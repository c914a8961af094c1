// For tests: loads liblockstep-nccl-profiler.so as NCCL does and drives all its versions. The structs below are written
// from NCCL's headers again, apart from nccl_abi.h: the two have to agree.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace lockstep::collect {

struct ProxyOp {
  pid_t pid;
  uint8_t channel;
  int peer, steps, chunk, is_send;
};
struct Coll1 {
  const char* name;
  uint64_t hash, sequence;
  uint8_t func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  uint8_t datatype;
  uint32_t op;
  size_t traffic;
  uint8_t channels, warps, algorithm, protocol;
  int collnet, nvls;
};
struct Coll2 {
  const char* name;
  uint64_t hash, sequence;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  size_t traffic;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
};
struct Coll3 {
  const char* name;
  uint64_t hash, sequence;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
};
struct Coll4 {
  uint64_t sequence;
  const char* func;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
};
struct Coll5 : Coll4 {
  void* group;
};
struct P2p1 {
  const char* name;
  uint64_t hash;
  uint8_t func;
  void* buffer;
  uint8_t datatype;
  size_t count;
  int peer;
};
struct P2p2 {
  const char* name;
  uint64_t hash;
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
};
struct P2p4 {
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
};

struct Kernel {
  uint8_t channel;
  uint64_t timer;
};

template <typename Type, typename Coll, typename P2p>
struct Descriptor {
  Type type;
  void* parent;
  int rank;
  union {
    Coll coll;
    P2p p2p;
    ProxyOp proxy;
    int step;
    Kernel kernel;
  };
};
using Descriptor1 = Descriptor<uint8_t, Coll1, P2p1>;
using Descriptor2 = Descriptor<uint8_t, Coll2, P2p2>;
using Descriptor3 = Descriptor<uint8_t, Coll3, P2p2>;
using Descriptor4 = Descriptor<uint8_t, Coll4, P2p4>;
using Descriptor5 = Descriptor<uint64_t, Coll5, P2p4>;
static_assert(sizeof(Descriptor1) == 120 && sizeof(Descriptor2) == 128 && sizeof(Descriptor3) == 120);
static_assert(sizeof(Descriptor4) == 104 && sizeof(Descriptor5) == 112);

inline constexpr int kGroup = 1, kColl = 2, kP2p = 4, kProxyOp = 8, kProxyStep = 16, kKernel = 64;
inline constexpr uint64_t kHash = 0xfeed;

struct Plugin {
  const char* name;
  void* init;
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*record)(void*, int, void*);
  int (*finalize)(void*);
};

// NCCL of one version, with one communicator of four ranks, in which we are rank 1.
class FakeNccl {
 public:
  explicit FakeNccl(int version) : version_(version) {
    void* library = dlopen(LOCKSTEP_NCCL_PROFILER, RTLD_NOW | RTLD_LOCAL);
    plugin_ = static_cast<Plugin*>(dlsym(library, ("ncclProfiler_v" + std::to_string(version)).c_str()));
  }
  int Init(uint64_t id = kHash) {
    id_ = id;
    if (version_ < 4) return reinterpret_cast<int (*)(void**, int*)>(plugin_->init)(&context_, &mask_);
    if (version_ == 4)
      return reinterpret_cast<int (*)(void**, int*, const char*, uint64_t, int, int, int, void*)>(plugin_->init)(
          &context_, &mask_, "dp", id, 2, 4, 1, nullptr);
    return reinterpret_cast<int (*)(void**, uint64_t, int*, const char*, int, int, int, void*)>(plugin_->init)(
        &context_, id, &mask_, "dp", 2, 4, 1, nullptr);
  }
  void* Coll() {
    return InGroup([&](auto& descriptor) { Fill(descriptor.coll); }, kColl);
  }
  void* Send(int peer) {
    return InGroup(
        [&](auto& descriptor) {
          FillFunction(descriptor.p2p.func, "Send", 6);
          descriptor.p2p.peer = peer;
          if constexpr (requires { descriptor.p2p.hash; }) descriptor.p2p.hash = id_;
        },
        kP2p);
  }
  void* Proxy(void* parent, int peer, bool sends, pid_t pid = getpid()) {
    return Start([&](auto& descriptor) { descriptor.proxy = {pid, 0, peer, 4, 1 << 20, sends}; }, kProxyOp, parent);
  }
  void* Step(void* parent) {
    return Start([](auto& descriptor) { descriptor.step = 0; }, kProxyStep, parent);
  }
  // By a clock of the device that is behind ours by this.
  static constexpr uint64_t kBehind = 1'000'000'000;
  static uint64_t DeviceTime() {
    timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec) - kBehind;
  }
  void* KernelOn(void* parent, uint8_t channel, uint64_t began) {
    return Start([&](auto& descriptor) { descriptor.kernel = {channel, began}; }, kKernel, parent);
  }
  void Ended(void* kernel, uint64_t at) {
    State(kernel, 22, at);
    Stop(kernel);
  }
  void* Other(int type) {
    return Start([](auto&) {}, type, nullptr);
  }
  void State(void* handle, int state, uint64_t bytes = 0) {
    std::array<uint64_t, 2> arguments{bytes, 0};
    EXPECT_EQ(plugin_->record(handle, state, bytes == 0 ? nullptr : arguments.data()), 0);
  }
  void Stop(void* handle) { EXPECT_EQ(plugin_->stop(handle), 0); }
  void Finalize() { EXPECT_EQ(plugin_->finalize(context_), 0); }
  int mask() const { return mask_; }
  int version() const { return version_; }

 private:
  static void FillFunction(const char*& func, const char* name, uint8_t) { func = name; }
  static void FillFunction(uint8_t& func, const char*, uint8_t number) { func = number; }
  template <typename Coll>
  void Fill(Coll& coll) {
    FillFunction(coll.func, "AllReduce", 4);
    coll.count = 1024;
    coll.channels = 2;
    if constexpr (requires { coll.hash; }) coll.hash = id_;
    if constexpr (std::is_base_of_v<Coll4, Coll>) coll.algorithm = "RING";
  }
  // Each op is in a group of its own. As NCCL up to 2.27 does, versions 1 to 4 tell of no op in a group without handle.
  template <typename Change>
  void* InGroup(Change change, int type) {
    void* group = Other(kGroup);
    if (group == nullptr && version_ <= 4) return nullptr;
    void* op = Start(change, type, group);
    if (group != nullptr) Stop(group);
    return op;
  }
  template <typename AnyDescriptor, typename Change>
  void* StartAs(Change change, int type, void* parent) {
    AnyDescriptor descriptor;
    std::memset(&descriptor, 0, sizeof descriptor);
    descriptor.type = static_cast<decltype(descriptor.type)>(type);
    descriptor.parent = parent;
    descriptor.rank = 1;
    change(descriptor);
    void* handle = &descriptor;  // has to be overwritten
    EXPECT_EQ(plugin_->start(context_, &handle, &descriptor), 0);
    EXPECT_NE(handle, &descriptor);
    return handle;
  }
  template <typename Change>
  void* Start(Change change, int type, void* parent) {
    switch (version_) {
      case 1:
        return StartAs<Descriptor1>(change, type, parent);
      case 2:
        return StartAs<Descriptor2>(change, type, parent);
      case 3:
        return StartAs<Descriptor3>(change, type, parent);
      case 4:
        return StartAs<Descriptor4>(change, type, parent);
      default:
        return StartAs<Descriptor5>(change, type, parent);
    }
  }

  int version_;
  Plugin* plugin_;
  void* context_ = nullptr;
  int mask_ = 0;
  uint64_t id_ = 0;
};

}  // namespace lockstep::collect
