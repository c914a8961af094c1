/* The seam between saving and where tensors live: CPU memory, or a CUDA device by way of the driver found with dlopen.
 *
 * A synchronous device copies at once and continues the CRC in the same pass, or says that the memory is gone. Another
 * one begins copies into pinned memory on a stream of its own, behind the work of the training stream, and tells by
 * query() when they are done; the caller then reads the CRC from there. Threads: order() is called by the training
 * thread, copy(), record() and query() by either, never by two at once.
 *
 *   if (device->synchronous) device->copy(device, to, from, bytes, &crc);
 *   else { order; copy ...; record; until query() != LS_COPY_PENDING; crc = ls_crc32c(crc, to, bytes) ... }
 */
#ifndef LOCKSTEP_CLIENT_DEVICE_H_
#define LOCKSTEP_CLIENT_DEVICE_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ls_copy_state { LS_COPY_DONE = 0, LS_COPY_PENDING = 1, LS_COPY_FAILED = 2 };

struct ls_device_ops {
  bool synchronous;
  /* Pins host memory, so that copies into it run beside the CPU; unpinned memory is correct but slow. */
  bool (*pin)(const struct ls_device_ops*, void* base, uint64_t bytes);
  void (*unpin)(const struct ls_device_ops*, void* base);
  /* What is copied from now on comes after the work that `stream` holds at this moment. */
  bool (*order)(const struct ls_device_ops*, void* stream);
  bool (*copy)(const struct ls_device_ops*, void* to, const void* from, uint64_t bytes, uint32_t* crc);
  /* As copy(), but on the training stream itself: what is queued there later may change the source. */
  bool (*copy_in_stream)(const struct ls_device_ops*, void* to, const void* from, uint64_t bytes, void* stream);
  bool (*record)(const struct ls_device_ops*);
  enum ls_copy_state (*query)(const struct ls_device_ops*);
};

const struct ls_device_ops* ls_device_cpu(void);
/* NULL: no usable driver (LOCKSTEP_LIBCUDA, else libcuda.so.1), or no current context in this thread; *error says
 * which. */
const struct ls_device_ops* ls_device_cuda(const char** error);

#ifdef __cplusplus
}
#endif
#endif
