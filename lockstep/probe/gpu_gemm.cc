#include "lockstep/probe/gpu_gemm.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "lockstep/client/client.h"
#include "lockstep/probe/exact.h"
#include "lockstep/probe/gemm_kernels.h"

namespace lockstep::probe {
namespace {

static_assert(kGemmSize == 256, "the kernel below has it in its text");

constexpr size_t kValues = size_t{kGemmSize} * kGemmSize, kMatrixBytes = kValues * sizeof(float);
constexpr unsigned kBlock = 16, kBlocks = kGemmSize / kBlock;
constexpr double kFlop = 2.0 * kGemmSize * kGemmSize * kGemmSize * kGpuProducts;

// A thread for each element of each product; the driver compiles it for the device that it finds (Volta or later).
constexpr char kMultiply[] = R"(
.version 6.4
.target sm_70
.address_size 64
.visible .entry multiply(.param .u64 a_of, .param .u64 b_of, .param .u64 c_of) {
  .reg .pred %more;
  .reg .f32 %sum, %x, %y;
  .reg .u32 %row, %column, %block, %left, %at;
  .reg .u64 %a, %b, %c;
  ld.param.u64 %a, [a_of];
  ld.param.u64 %b, [b_of];
  ld.param.u64 %c, [c_of];
  cvta.to.global.u64 %a, %a;
  cvta.to.global.u64 %b, %b;
  cvta.to.global.u64 %c, %c;
  mov.u32 %column, %tid.x;
  mov.u32 %block, %ctaid.x;
  mad.lo.u32 %column, %block, 16, %column;
  mov.u32 %row, %tid.y;
  mov.u32 %block, %ctaid.y;
  mad.lo.u32 %row, %block, 16, %row;
  mov.u32 %block, %ctaid.z;
  mad.lo.u32 %at, %block, 256, %row;     // c[z][row][column]
  mad.lo.u32 %at, %at, 256, %column;
  mad.wide.u32 %c, %at, 4, %c;
  mad.wide.u32 %a, %row, 1024, %a;
  mad.wide.u32 %b, %column, 4, %b;
  mov.f32 %sum, 0f00000000;
  mov.u32 %left, 256;
NEXT:
  ld.global.f32 %x, [%a];
  ld.global.f32 %y, [%b];
  fma.rn.f32 %sum, %x, %y, %sum;
  add.u64 %a, %a, 4;
  add.u64 %b, %b, 1024;
  sub.u32 %left, %left, 1;
  setp.ne.u32 %more, %left, 0;
  @%more bra NEXT;
  st.global.f32 [%c], %sum;
  ret;
}
)";

}  // namespace

absl::Status GpuGemm::Begin(CudaDriver::Pointer inputs, CudaDriver::Pointer outputs, void* host) {
  inputs_ = inputs;
  outputs_ = outputs;
  host_ = host;
  LS_RETURN_IF_ERROR(CheckCuda(driver_.load_module(&module_, kMultiply), "cuModuleLoadData"));
  return CheckCuda(driver_.function(&multiply_, module_, "multiply"), "cuModuleGetFunction");
}

void GpuGemm::Unload() {
  if (module_ != nullptr) driver_.unload_module(module_);
  module_ = nullptr;
}

absl::Status GpuGemm::Once(const Budget& budget) {
  const std::vector<float> a = FixedValues("gemm a", kValues, 1), b = FixedValues("gemm b", kValues, 1);
  CudaDriver::Pointer at_a = inputs_, at_b = inputs_ + kMatrixBytes, at_c = outputs_;
  LS_RETURN_IF_ERROR(CheckCuda(driver_.to_device(at_a, a.data(), kMatrixBytes), "cuMemcpyHtoD"));
  LS_RETURN_IF_ERROR(CheckCuda(driver_.to_device(at_b, b.data(), kMatrixBytes), "cuMemcpyHtoD"));
  LS_RETURN_IF_ERROR(CheckCuda(driver_.set(at_c, ~0U, kGpuProducts * kValues), "cuMemsetD32"));
  std::array<void*, 3> parameters = {&at_a, &at_b, &at_c};
  LS_RETURN_IF_ERROR(CheckCuda(driver_.synchronize(), "cuCtxSynchronize"));
  const Nanos begin = budget.Now();
  LS_RETURN_IF_ERROR(CheckCuda(driver_.launch(multiply_, kBlocks, kBlocks, kGpuProducts, kBlock, kBlock, 1, 0, nullptr,
                                              parameters.data(), nullptr),
                               "cuLaunchKernel"));
  LS_RETURN_IF_ERROR(CheckCuda(driver_.synchronize(), "cuCtxSynchronize"));
  rate_ = std::max(rate_, kFlop / ToSeconds(budget.Now() - begin).value * 1e-9);
  LS_RETURN_IF_ERROR(CheckCuda(driver_.to_host(host_, at_c, kGpuProducts * kMatrixBytes), "cuMemcpyDtoH"));
  for (int i = 0; i < kGpuProducts; ++i) {
    const uint32_t crc =
        ls_crc32c(0, static_cast<const std::byte*>(host_) + static_cast<size_t>(i) * kMatrixBytes, kMatrixBytes);
    if (products_++ == 0) crc_ = crc;
    unlike_ += crc != crc_ ? 1 : 0;
  }
  return absl::OkStatus();
}

}  // namespace lockstep::probe
