/* The CUDA driver API by dlopen: no CUDA headers, no link. Written against the driver's documented ABI and run in tests
 * against a stand-in library (device_test.cc), and on a GPU where there is one (gpu_test.cc), which was not the case
 * yet. The context is PyTorch's: the one current in the training thread at the first copy. The copy thread makes it
 * current for itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

#include "lockstep/client/device.h"

typedef int cu_result; /* CUresult: 0 is success */
enum { kCudaSuccess = 0, kCudaNotReady = 600, kStreamNonBlocking = 1, kEventDisableTiming = 2 };
typedef unsigned long long cu_pointer; /* CUdeviceptr */

static struct {
  cu_result (*init)(unsigned flags);
  cu_result (*get_context)(void** context);
  cu_result (*set_context)(void* context);
  cu_result (*host_register)(void* base, size_t bytes, unsigned flags);
  cu_result (*host_unregister)(void* base);
  cu_result (*stream_create)(void** stream, unsigned flags);
  cu_result (*stream_wait)(void* stream, void* event, unsigned flags);
  cu_result (*event_create)(void** event, unsigned flags);
  cu_result (*event_record)(void* event, void* stream);
  cu_result (*event_query)(void* event);
  cu_result (*copy_to_host)(void* to, cu_pointer from, size_t bytes, void* stream);
} driver;

static void* context;
static void* side_stream;
static void* ready_event; /* the training stream has come as far as the save */
static void* done_event;  /* the copies are in host memory */

static bool resolve(void* library) {
  const struct {
    void* function;
    const char* name;
  } wanted[] = {
      {&driver.init, "cuInit"},
      {&driver.get_context, "cuCtxGetCurrent"},
      {&driver.set_context, "cuCtxSetCurrent"},
      {&driver.host_register, "cuMemHostRegister_v2"},
      {&driver.host_unregister, "cuMemHostUnregister"},
      {&driver.stream_create, "cuStreamCreate"},
      {&driver.stream_wait, "cuStreamWaitEvent"},
      {&driver.event_create, "cuEventCreate"},
      {&driver.event_record, "cuEventRecord"},
      {&driver.event_query, "cuEventQuery"},
      {&driver.copy_to_host, "cuMemcpyDtoHAsync_v2"},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
    if ((*(void**)wanted[i].function = dlsym(library, wanted[i].name)) == NULL) return false;
  }
  return true;
}

/* The copy thread has no context of its own. */
static bool enter(void) { return driver.set_context(context) == kCudaSuccess; }

static bool pin(const struct ls_device_ops* device, void* base, uint64_t bytes) {
  (void)device;
  return enter() && driver.host_register(base, bytes, 0) == kCudaSuccess;
}
static void unpin(const struct ls_device_ops* device, void* base) {
  (void)device;
  if (enter()) driver.host_unregister(base);
}
static bool order(const struct ls_device_ops* device, void* stream) {
  (void)device;
  return enter() && driver.event_record(ready_event, stream) == kCudaSuccess &&
         driver.stream_wait(side_stream, ready_event, 0) == kCudaSuccess;
}
static bool copy_in_stream(const struct ls_device_ops* device, void* to, const void* from, uint64_t bytes,
                           void* stream) {
  (void)device;
  return driver.copy_to_host(to, (cu_pointer)(uintptr_t)from, bytes, stream) == kCudaSuccess;
}
static bool copy(const struct ls_device_ops* device, void* to, const void* from, uint64_t bytes, uint32_t* crc) {
  (void)crc;
  return enter() && copy_in_stream(device, to, from, bytes, side_stream);
}
static bool record(const struct ls_device_ops* device) {
  (void)device;
  return enter() && driver.event_record(done_event, side_stream) == kCudaSuccess;
}
static enum ls_copy_state query(const struct ls_device_ops* device) {
  (void)device;
  const cu_result result = driver.event_query(done_event);
  if (result == kCudaSuccess) return LS_COPY_DONE;
  return result == kCudaNotReady ? LS_COPY_PENDING : LS_COPY_FAILED;
}

/* What was made before another one was refused is there at the next try. */
static bool make_stream(void** stream) {
  if (*stream != NULL || driver.stream_create(stream, kStreamNonBlocking) == kCudaSuccess) return true;
  return *stream = NULL, false;
}
static bool make_event(void** event) {
  if (*event != NULL || driver.event_create(event, kEventDisableTiming) == kCudaSuccess) return true;
  return *event = NULL, false;
}

static const char* open_device(void) {
  const char* path = getenv("LOCKSTEP_LIBCUDA");
  void* library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return "no CUDA driver: libcuda.so.1 (or LOCKSTEP_LIBCUDA) cannot be loaded";
  if (!resolve(library)) return "the CUDA driver library lacks a function that copying needs";
  if (driver.init(0) != kCudaSuccess) return "cuInit failed";
  void* current = NULL;
  if (driver.get_context(&current) != kCudaSuccess || current == NULL) {
    return "no CUDA context is current in the thread that saves";
  }
  if (current != context) side_stream = ready_event = NULL;
  context = current;
  const bool made = make_stream(&side_stream) && make_event(&ready_event) && make_event(&done_event);
  return made ? NULL : "the CUDA driver refused a stream or an event";
}

const struct ls_device_ops* ls_device_cuda(const char** error) {
  static const struct ls_device_ops ops = {.pin = pin,
                                           .unpin = unpin,
                                           .order = order,
                                           .copy = copy,
                                           .copy_in_stream = copy_in_stream,
                                           .record = record,
                                           .query = query};
  if (done_event == NULL) *error = open_device();
  return done_event != NULL ? &ops : NULL;
}
