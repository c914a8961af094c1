/* A CUDA driver for gpu_test.cc with two devices, whose memory is host memory. FAKE_CUDA_FAULT in the environment:
 * "none" (no devices), "flip" (device 1 loses a bit when it is set), "peer" (copies to another device lose a bit),
 * "init", "memory" (device 0 has none), "module" (device 0 can't load a kernel), "launch" (device 1 fails at it),
 * "multiply" (one product of device 1 has a wrong bit) or "crash". Of kernels it knows the one of gpu_gemm.cc. */
#include <math.h>
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

int cuModuleLoadData(void** module, const void* image) {
  if (current == 0 && fault("module")) return 218; /* CUDA_ERROR_INVALID_PTX */
  return *module = &contexts[current], strstr(image, ".entry multiply(") != NULL ? 0 : 218;
}
int cuModuleUnload(void* module) { return module == &contexts[current] ? 0 : kInvalid; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  return *function = module, strcmp(name, "multiply") == 0 ? 0 : kInvalid;
}
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                   void** extra) {
  if (function != &contexts[current] || block_z != 1 || shared_bytes != 0 || stream != NULL || extra != NULL)
    return kInvalid;
  if (current == 1 && fault("launch")) return 700;    /* CUDA_ERROR_ILLEGAL_ADDRESS */
  if (current == 1 && fault("late load")) return 222; /* CUDA_ERROR_UNSUPPORTED_PTX_VERSION */
  const unsigned columns = grid_x * block_x, rows = grid_y * block_y;
  const float *a = (const float*)(uintptr_t)*(unsigned long long*)parameters[0],
              *b = (const float*)(uintptr_t)*(unsigned long long*)parameters[1];
  float* const c = (float*)(uintptr_t)*(unsigned long long*)parameters[2];
  for (unsigned row = 0; row < rows; ++row) {
    for (unsigned column = 0; column < columns; ++column) {
      float sum = 0;
      for (unsigned k = 0; k < columns; ++k) sum = fmaf(a[row * columns + k], b[k * columns + column], sum);
      c[row * columns + column] = sum;
    }
  }
  for (unsigned z = 1; z < grid_z; ++z) memcpy(c + (size_t)z * rows * columns, c, (size_t)rows * columns * sizeof *c);
  if (current == 1 && fault("multiply")) ((uint8_t*)(c + 5 * rows * columns))[4000] ^= 1;
  return 0;
}
