// The CUDA path against a real driver and a real GPU: what the training stream wrote before the save is what comes
// back, whatever it writes afterwards. Skipped where there is none; device_test.cc holds the calls and their order
// anywhere.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lockstep/client/client.h"
#include "lockstep/client/device.h"
#include "lockstep/client/fake_starter.h"

namespace lockstep::client {
namespace {

using Pointer = void*;  // CUdeviceptr: an integer of that size, which is passed alike

// The part of the driver API with which a framework would make tensors and write them.
class Gpu {
 public:
  Gpu() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      why_not_ = "no libcuda.so.1 here";
      return;
    }
    int device = 0;
    void* context = nullptr;
    ready_ = Call<int(unsigned)>("cuInit")(0) == 0 && Call<int(int*, int)>("cuDeviceGet")(&device, 0) == 0 &&
             Call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device) == 0 &&
             Call<int(void*)>("cuCtxSetCurrent")(context) == 0 &&
             Call<int(void**, unsigned)>("cuStreamCreate")(&stream_, 1) == 0;
    if (!ready_) why_not_ = "no GPU that the driver will use";
  }
  const char* why_not() const { return ready_ ? nullptr : why_not_; }
  void* stream() const { return stream_; }
  Pointer Make(size_t bytes) {
    Pointer pointer = nullptr;
    EXPECT_EQ(Call<int(Pointer*, size_t)>("cuMemAlloc_v2")(&pointer, bytes), 0);
    return pointer;
  }
  // On the stream, and without waiting for it.
  void Fill(Pointer pointer, size_t bytes, char value) {
    const auto byte = static_cast<unsigned char>(value);
    EXPECT_EQ(Call<int(Pointer, unsigned char, size_t, void*)>("cuMemsetD8Async")(pointer, byte, bytes, stream_), 0);
  }

 private:
  template <typename Function>
  Function* Call(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

  void* library_;
  void* stream_ = nullptr;
  bool ready_ = false;
  const char* why_not_ = nullptr;
};

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_.why_not() != nullptr) GTEST_SKIP() << gpu_.why_not();
  }
  Gpu gpu_;
};

TEST_F(GpuTest, WhatTheStreamHadWrittenIsWhatComesBack) {
  constexpr size_t kBuffer = 1 << 20, kWeight = 256 << 20;
  const Pointer buffer = gpu_.Make(kBuffer), weight = gpu_.Make(kWeight);
  FakeStarter starter(1);
  starter.StartEpoch(1);
  ls_client* client = ls_join();
  ASSERT_NE(client, nullptr) << ls_last_error();
  ASSERT_EQ(ls_buffers(client, kBuffer + kWeight + 4096), LS_OK) << ls_last_error();
  ls_save_stream(client, gpu_.stream());
  for (int64_t step = 0; step < 3; ++step) {
    const char value = static_cast<char>('a' + step);
    gpu_.Fill(weight, kWeight, value);
    gpu_.Fill(buffer, kBuffer, value);
    ASSERT_EQ(ls_save_begin(client, step, "meta", 4), LS_OK) << ls_last_error();
    ASSERT_EQ(ls_save_add_now(client, LS_DEVICE_CUDA, buffer, kBuffer), LS_OK) << ls_last_error();
    ASSERT_EQ(ls_save_add(client, LS_DEVICE_CUDA, weight, kWeight), LS_OK) << ls_last_error();
    ASSERT_EQ(ls_save_submit(client), LS_OK) << ls_last_error();
    gpu_.Fill(buffer, kBuffer, 'x');  // the next forward pass
    ASSERT_EQ(ls_save_wait(client), LS_OK) << ls_last_error();
    gpu_.Fill(weight, kWeight, 'x');  // the next optimizer step
  }
  ls_leave(client);

  starter.StartEpoch(2, 1, 2);
  client = ls_join();
  int64_t step = 0;
  const void *meta = nullptr, *tensors = nullptr;
  uint64_t meta_bytes = 0, tensor_bytes = 0;
  ASSERT_EQ(ls_restore_point(client, 10, &step, &meta, &meta_bytes, &tensors, &tensor_bytes), LS_OK) << ls_last_error();
  const auto* bytes = static_cast<const char*>(tensors);
  EXPECT_EQ(std::vector<char>(bytes, bytes + kBuffer), std::vector<char>(kBuffer, 'c'));
  const char* weights = bytes + ls_align(kBuffer);
  EXPECT_EQ(std::count(weights, weights + kWeight, 'c'), static_cast<ptrdiff_t>(kWeight));
  ls_leave(client);
}

}  // namespace
}  // namespace lockstep::client
