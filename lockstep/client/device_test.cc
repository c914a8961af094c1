// The CUDA path against a driver that is ours (fake_cuda.c): what is called, in which order, and that nobody reads
// before the event.
#include "lockstep/client/device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/client/client.h"
#include "lockstep/client/fake_starter.h"

namespace lockstep::client {
namespace {

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
