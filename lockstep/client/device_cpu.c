#include <stddef.h>

#include "lockstep/client/device.h"
#include "lockstep/client/fault.h"

static bool copy(const struct ls_device_ops* device, void* to, const void* from, uint64_t bytes, uint32_t* crc) {
  (void)device;
  return ls_fault_copy(to, from, bytes, crc);
}

const struct ls_device_ops* ls_device_cpu(void) {
  static const struct ls_device_ops ops = {.synchronous = true, .copy = copy};
  return &ops;
}
