// The product of gemm_kernels.h on a device, kGpuProducts times at once, so that all multiprocessors compute: each
// element is summed by rising index with fused multiply-add, which IEEE 754 defines to the last bit. So all copies of
// all devices have one checksum, and it is the fused kernels' of processors.
//
// What is taken for a fault: copies of one device that differ. A device whose copies are all alike, but not what a
// processor computes, only tells its checksum: nodes are compared, and the majority is right.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/probe/budget.h"
#include "lockstep/probe/cuda_driver.h"

namespace lockstep::probe {

inline constexpr int kGpuProducts = 64;

class GpuGemm {
 public:
  explicit GpuGemm(const CudaDriver& driver) : driver_(driver) {}
  GpuGemm(const GpuGemm&) = delete;
  GpuGemm& operator=(const GpuGemm&) = delete;
  ~GpuGemm() { Unload(); }

  // In the context that is current: compiles the kernel for this device. Of the device's memory `inputs` and `outputs`,
  // and of the host's `host`, 16 MiB each are used.
  absl::Status Begin(CudaDriver::Pointer inputs, CudaDriver::Pointer outputs, void* host);
  absl::Status Once(const Budget& budget);
  void Unload();  // in the same context, or after it

  uint64_t products() const { return products_; }
  uint64_t unlike() const { return unlike_; }  // of these, not what the first one was
  uint32_t crc() const { return crc_; }        // of the first one
  double rate() const { return rate_; }        // GFLOP/s, the best launch's

 private:
  const CudaDriver& driver_;
  CudaDriver::Module module_ = nullptr;
  CudaDriver::Function multiply_ = nullptr;
  CudaDriver::Pointer inputs_ = 0, outputs_ = 0;
  void* host_ = nullptr;
  uint64_t products_ = 0, unlike_ = 0;
  uint32_t crc_ = 0;
  double rate_ = 0;
};

}  // namespace lockstep::probe
