/* A CUDA driver for device_test.cc: "device memory" is host memory, and the work of a stream is carried out when its
 * event is queried for the second time, so that a caller who does not wait, or waits for the wrong event, is found out.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { kNotReady = 600, kInvalid = 1, kMost = 64 };

static struct {
  void* to;
  const void* from;
  size_t bytes;
} queue[kMost];
static int queued, queries, registered;
static int context, stream, event[2], events;

int cuInit(unsigned flags) { return (int)flags; }
int cuCtxGetCurrent(void** out) { return *out = &context, 0; }
int cuCtxSetCurrent(void* wanted) { return wanted == &context ? 0 : kInvalid; }
int cuMemHostRegister_v2(void* base, size_t bytes, unsigned flags) {
  ++registered;
  return base != NULL && bytes > 0 && flags == 0 ? 0 : kInvalid;
}
int cuMemHostUnregister(void* base) { return --registered, base != NULL ? 0 : kInvalid; }
int cuStreamCreate(void** out, unsigned flags) { return *out = &stream, flags == 1 ? 0 : kInvalid; }
int cuStreamWaitEvent(void* waiting, void* awaited, unsigned flags) {
  return waiting == &stream && awaited == &event[0] && flags == 0 ? 0 : kInvalid;
}
int cuEventCreate(void** out, unsigned flags) { return *out = &event[events++ % 2], flags == 2 ? 0 : kInvalid; }
int cuEventRecord(void* recorded, void* on) {
  queries = 0;
  return (recorded == &event[1]) == (on == &stream) && on != NULL ? 0
                                                                  : kInvalid; /* done on ours, ready on the trainer's */
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* on) {
  (void)on;
  if (queued == kMost) return kInvalid;
  queue[queued].to = to;
  queue[queued].from = (const void*)(uintptr_t)from;
  queue[queued++].bytes = bytes;
  return 0;
}
int cuEventQuery(void* queried) {
  if (queried != &event[1]) return kInvalid;
  if (++queries < 2) return kNotReady;
  for (int i = 0; i < queued; ++i) memcpy(queue[i].to, queue[i].from, queue[i].bytes);
  queued = 0;
  return 0;
}
int fake_cuda_registered(void) { return registered; }
