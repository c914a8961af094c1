// The CUDA driver's functions that the GPU test needs, found with dlopen: no CUDA is needed to build or to run.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::probe {

struct CudaDriver {
  using Result = int;                  // CUresult: 0 is success
  using Pointer = unsigned long long;  // CUdeviceptr
  using Context = void*;
  using Module = void*;
  using Function = void*;

  Result (*init)(unsigned flags);
  Result (*device_count)(int* count);
  Result (*device)(int* device, int ordinal);
  Result (*retain)(Context* context, int device);
  Result (*release)(int device);
  Result (*set_current)(Context context);
  Result (*synchronize)();
  Result (*allocate)(Pointer* memory, size_t bytes);
  Result (*free)(Pointer memory);
  Result (*allocate_host)(void** memory, size_t bytes, unsigned flags);
  Result (*free_host)(void* memory);
  Result (*to_device)(Pointer to, const void* from, size_t bytes);
  Result (*to_host)(void* to, Pointer from, size_t bytes);
  Result (*within)(Pointer to, Pointer from, size_t bytes);
  Result (*to_peer)(Pointer to, Context to_context, Pointer from, Context from_context, size_t bytes);
  Result (*set)(Pointer to, unsigned value, size_t words);
  Result (*load_module)(Module* module, const void* image);
  Result (*unload_module)(Module module);
  Result (*function)(Function* function, Module module, const char* name);
  Result (*launch)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                   void** extra);
};

// "" if all is there; else what is missing. LOCKSTEP_LIBCUDA names another library than libcuda.so.1.
std::string Load(CudaDriver& driver);

absl::Status CheckCuda(CudaDriver::Result result, const char* what);

}  // namespace lockstep::probe
