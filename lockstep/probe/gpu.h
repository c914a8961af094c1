// The GPUs of this machine, by the CUDA driver found with dlopen (LOCKSTEP_LIBCUDA, else libcuda.so.1): whether memory
// keeps what is set, how fast it is copied between host, device and, where there are more, devices, and the bits
// and rate of a fixed product (gpu_gemm.h). Written against the driver's documented ABI and run in tests against
// a stand-in library only. Memory: 64 MiB of the host, pinned, and 128 MiB of each device; only those are tested. A
// driver that hangs hangs this call: use RunApart().
#pragma once

#include <string>
#include <vector>

#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

// For each device gpu.N.bits (errors: words that are not what was set or copied), gpu.N.to_device, gpu.N.to_host,
// gpu.N.within (GB/s; copied bytes count once) and, with more devices, gpu.N.to_next; gpu.N.gemm (crc32c of a product;
// not ok: products that should be alike are not, or the device fails at them) and gpu.N.gemm_rate (GFLOP/s). Without a
// driver or a device one, "gpu", which says so, and is ok unless one is expected here.
std::vector<Measurement> MeasureGpus(const Budget& budget, bool expected);

// "4 x NVIDIA H100"; "no GPU" where none is shown. Asks the kernel, not the driver, which might hang.
std::string GpuText();

}  // namespace lockstep::probe
