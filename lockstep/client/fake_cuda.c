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
static int queued, queries, registered, asked_to_register;
static int context, stream, streams, event[2], events;
static int refuse_to_register, most_events = kMost;

int cuInit(unsigned flags) { return (int)flags; }
int cuCtxGetCurrent(void** out) { return *out = &context, 0; }
int cuCtxSetCurrent(void* wanted) { return wanted == &context ? 0 : kInvalid; }
int cuMemHostRegister_v2(void* base, size_t bytes, unsigned flags) {
  ++asked_to_register;
  if (refuse_to_register || base == NULL || bytes == 0 || flags != 0) return kInvalid;
  return ++registered, 0;
}
int cuMemHostUnregister(void* base) { return --registered, base != NULL ? 0 : kInvalid; }
int cuStreamCreate(void** out, unsigned flags) { return ++streams, *out = &stream, flags == 1 ? 0 : kInvalid; }
int cuStreamWaitEvent(void* waiting, void* awaited, unsigned flags) {
  return waiting == &stream && awaited == &event[0] && flags == 0 ? 0 : kInvalid;
}
int cuEventCreate(void** out, unsigned flags) {
  if (events >= most_events) return kInvalid;
  return *out = &event[events++ % 2], flags == 2 ? 0 : kInvalid;
}
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
int fake_cuda_asked_to_register(void) { return asked_to_register; }
void fake_cuda_refuse_to_register(int refuse) { refuse_to_register = refuse; }
void fake_cuda_allow_events(int most) { most_events = most; }
int fake_cuda_made(void) { return 10 * streams + events; }
