// The CUDA path against a driver that is ours (fake_cuda.c): what is called, in which order, and that nobody reads
// before the event.
#include "lockstep/client/device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/client/client.h"
#include "lockstep/client/fake_starter.h"

namespace lockstep::client {
namespace {

// A function of fake_cuda.c's own.
int AskFake(const char* name, int argument = 0) {
  void* fake = dlopen(LOCKSTEP_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<int (*)(int)>(dlsym(fake, name))(argument);
}

TEST(Device, CpuContinuesTheCrcWhileItCopies) {
  const std::string from = "123456789";
  std::string to(9, ' ');
  uint32_t crc = ls_crc32c(0, from.data(), 4);
  const ls_device_ops* cpu = ls_device_cpu();
  ASSERT_TRUE(cpu->synchronous);
  ASSERT_TRUE(cpu->copy(cpu, to.data(), from.data() + 4, 5, &crc));
  EXPECT_EQ(crc, 0xe3069283u);
  EXPECT_EQ(to.substr(0, 5), "56789");
}

// Before the other tests: the driver is loaded once per process.
TEST(Device, SaysThatThereIsNoDriver) {
  setenv("LOCKSTEP_LIBCUDA", "/nonexistent.so", 1);
  const char* error = nullptr;
  EXPECT_EQ(ls_device_cuda(&error), nullptr);
  EXPECT_STREQ(error, "no CUDA driver: libcuda.so.1 (or LOCKSTEP_LIBCUDA) cannot be loaded");
}

// Asked again at every save: what was made at the first try is not made again.
TEST(Device, ADriverThatRefusesAnEventIsAskedForTheRestLater) {
  setenv("LOCKSTEP_LIBCUDA", LOCKSTEP_FAKE_CUDA, 1);
  AskFake("fake_cuda_allow_events", 1);
  const char* error = nullptr;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ls_device_cuda(&error), nullptr);
    EXPECT_STREQ(error, "the CUDA driver refused a stream or an event");
  }
  EXPECT_EQ(AskFake("fake_cuda_made"), 11) << "one stream, one event";
  AskFake("fake_cuda_allow_events", 2);
  EXPECT_NE(ls_device_cuda(&error), nullptr);
  EXPECT_EQ(AskFake("fake_cuda_made"), 12);
}

// Pinning is tried once for the buffers that there are, not for every tensor of every save.
TEST(Device, BuffersThatCannotBePinnedStayAsTheyAre) {
  setenv("LOCKSTEP_LIBCUDA", LOCKSTEP_FAKE_CUDA, 1);
  AskFake("fake_cuda_refuse_to_register", 1);
  FakeStarter starter(1);
  starter.StartEpoch(1);
  ls_client* client = ls_join();
  ASSERT_NE(client, nullptr) << ls_last_error();
  const std::vector<char> weight(100, 'w');
  const void* sources[] = {weight.data(), weight.data(), weight.data()};
  const uint64_t bytes[] = {100, 100, 100};
  const auto save = [&](int64_t step) {
    EXPECT_EQ(ls_save_begin(client, step, "meta", 4), LS_OK);
    EXPECT_EQ(ls_save_add_many(client, LS_DEVICE_CUDA, sources, bytes, 3), LS_OK);
    EXPECT_EQ(ls_save_here(client), LS_OK);
  };
  int training_stream = 0;
  ls_save_stream(client, &training_stream);
  ASSERT_EQ(ls_buffers(client, 100'000), LS_OK);
  const int before = AskFake("fake_cuda_asked_to_register");
  save(0);
  save(1);
  EXPECT_EQ(AskFake("fake_cuda_asked_to_register"), before + 1);
  AskFake("fake_cuda_refuse_to_register", 0);
  ASSERT_EQ(ls_buffers(client, 200'000), LS_OK);
  save(2);
  EXPECT_EQ(AskFake("fake_cuda_registered"), LS_SLOTS) << "new buffers are tried anew";
  ls_leave(client);
  EXPECT_EQ(AskFake("fake_cuda_registered"), 0);
}

TEST(Device, CudaTensorsAreCopiedBehindTheirEventAndRestored) {
  setenv("LOCKSTEP_LIBCUDA", LOCKSTEP_FAKE_CUDA, 1);
  FakeStarter starter(1);
  starter.StartEpoch(1);
  ls_client* client = ls_join();
  ASSERT_NE(client, nullptr) << ls_last_error();
  ASSERT_EQ(ls_buffers(client, 100'000), LS_OK);
  const std::vector<char> buffer(300, 'b'), weight(50'000, 'w'), host(1000, 'h');
  int training_stream = 0;
  ls_save_stream(client, &training_stream);
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_EQ(ls_save_begin(client, step, "meta", 4), LS_OK);
    ASSERT_EQ(ls_save_add_now(client, LS_DEVICE_CUDA, buffer.data(), buffer.size()), LS_OK) << ls_last_error();
    ASSERT_EQ(ls_save_add(client, LS_DEVICE_CUDA, weight.data(), weight.size()), LS_OK);
    ASSERT_EQ(ls_save_add(client, LS_DEVICE_CPU, host.data(), host.size()), LS_OK);
    ASSERT_EQ(ls_save_submit(client), LS_OK);
    ASSERT_EQ(ls_save_wait(client), LS_OK);
  }
  ls_leave(client);

  starter.StartEpoch(2, 1, 2);
  client = ls_join();
  int64_t step;
  const void *meta, *tensors;
  uint64_t meta_bytes, tensor_bytes;
  ASSERT_EQ(ls_restore_point(client, 10, &step, &meta, &meta_bytes, &tensors, &tensor_bytes), LS_OK) << ls_last_error();
  const char* bytes = static_cast<const char*>(tensors);
  EXPECT_EQ(bytes[0], 'b');
  EXPECT_EQ(bytes[ls_align(300)], 'w');
  EXPECT_EQ(bytes[ls_align(300) + 49'999], 'w');
  EXPECT_EQ(bytes[ls_align(300) + ls_align(50'000)], 'h');
  ls_leave(client);
}

}  // namespace
}  // namespace lockstep::client
