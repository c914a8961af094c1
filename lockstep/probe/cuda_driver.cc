#include "lockstep/probe/cuda_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
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

// ECC, NVLink; a kernel's illegal address, time, assertion, trap, instruction, alignment, or "launch failed".
static bool IsOfTheDevice(CudaDriver::Result result) {
  constexpr int kCodes[] = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719};
  return std::find(std::begin(kCodes), std::end(kCodes), result) != std::end(kCodes);
}

absl::Status CheckCuda(CudaDriver::Result result, const char* what) {
  if (result == 0) return absl::OkStatus();
  return MakeError(IsOfTheDevice(result) ? absl::StatusCode::kInternal : absl::StatusCode::kFailedPrecondition,
                   fmt::format("{} failed with CUDA error {}", what, result));
}

}  // namespace lockstep::probe
