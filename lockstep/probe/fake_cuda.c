/* A CUDA driver for gpu_test.cc with two devices, whose memory is host memory. FAKE_CUDA_FAULT in the environment:
 * "none" (no devices), "flip" (device 1 loses a bit when it is set), "peer" (copies to another device lose a bit),
 * "init", "memory" (device 0 has none) or "crash". */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kInvalid = 1, kOutOfMemory = 2, kNotInitialised = 3, kDevices = 2 };

static int current = -1, contexts[kDevices];

static int fault(const char* name) {
  const char* wanted = getenv("FAKE_CUDA_FAULT");
  return wanted != NULL && strcmp(wanted, name) == 0;
}

int cuInit(unsigned flags) {
  if (fault("crash")) abort();
  return fault("init") ? 999 : (int)flags;
}
int cuDeviceGetCount(int* count) { return *count = fault("none") ? 0 : kDevices, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal < kDevices ? 0 : kInvalid; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &contexts[device], 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device < kDevices ? 0 : kInvalid; }
int cuCtxSetCurrent(void* context) { return current = (int)((int*)context - contexts), 0; }
int cuCtxSynchronize(void) { return current < 0 ? kNotInitialised : 0; }
int cuMemAlloc_v2(unsigned long long* memory, size_t bytes) {
  if (current < 0) return kNotInitialised;
  if (current == 0 && fault("memory")) return kOutOfMemory;
  return *memory = (uintptr_t)malloc(bytes), 0;
}
int cuMemFree_v2(unsigned long long memory) { return free((void*)(uintptr_t)memory), 0; }
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) { return *memory = malloc(bytes), (int)flags; }
int cuMemFreeHost(void* memory) { return free(memory), 0; }
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t bytes) {
  return memcpy((void*)(uintptr_t)to, from, bytes), 0;
}
int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t bytes) {
  return memcpy(to, (const void*)(uintptr_t)from, bytes), 0;
}
int cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, size_t bytes) {
  return memcpy((void*)(uintptr_t)to, (const void*)(uintptr_t)from, bytes), 0;
}
int cuMemcpyPeer(unsigned long long to, void* to_context, unsigned long long from, void* from_context, size_t bytes) {
  if (to_context == from_context) return kInvalid;
  memcpy((void*)(uintptr_t)to, (const void*)(uintptr_t)from, bytes);
  if (fault("peer")) *(uint8_t*)(uintptr_t)(to + 80) ^= 4;
  return 0;
}
int cuMemsetD32_v2(unsigned long long to, unsigned value, size_t words) {
  uint32_t* const memory = (uint32_t*)(uintptr_t)to;
  for (size_t i = 0; i < words; ++i) memory[i] = value;
  if (current == 1 && fault("flip")) memory[1000] &= ~1U;
  return 0;
}
