#include "lockstep/probe/cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

namespace lockstep::probe {

std::string Load(CudaDriver& driver) {
  const char* const path = std::getenv("LOCKSTEP_LIBCUDA");
  void* const library = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "no GPU: libcuda.so.1 can't be loaded";
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  const bool all = find(driver.init, "cuInit") && find(driver.device_count, "cuDeviceGetCount") &&
                   find(driver.device, "cuDeviceGet") && find(driver.retain, "cuDevicePrimaryCtxRetain") &&
                   find(driver.release, "cuDevicePrimaryCtxRelease_v2") &&
                   find(driver.set_current, "cuCtxSetCurrent") && find(driver.synchronize, "cuCtxSynchronize") &&
                   find(driver.allocate, "cuMemAlloc_v2") && find(driver.free, "cuMemFree_v2") &&
                   find(driver.allocate_host, "cuMemHostAlloc") && find(driver.free_host, "cuMemFreeHost") &&
                   find(driver.to_device, "cuMemcpyHtoD_v2") && find(driver.to_host, "cuMemcpyDtoH_v2") &&
                   find(driver.within, "cuMemcpyDtoD_v2") && find(driver.to_peer, "cuMemcpyPeer") &&
                   find(driver.set, "cuMemsetD32_v2") && find(driver.load_module, "cuModuleLoadData") &&
                   find(driver.unload_module, "cuModuleUnload") && find(driver.function, "cuModuleGetFunction") &&
                   find(driver.launch, "cuLaunchKernel");
  return all ? "" : "no GPU: the CUDA driver library lacks a function that the test needs";
}

absl::Status CheckCuda(CudaDriver::Result result, const char* what) {
  return result == 0 ? absl::OkStatus() : FailedPrecondition("{} failed with CUDA error {}", what, result);
}

}  // namespace lockstep::probe
