#include "lockstep/plan/kernel_kind.h"

#include <absl/strings/ascii.h>

#include <string>

namespace lockstep::plan {
namespace {

struct Mark {
  StepPart part;
  std::string_view text;  // within the name in lower case
};
// The first that is found counts: a fused kernel of attention is built of CUTLASS's products, an optimizer's of
// PyTorch's element-wise ones, and what Triton's template multiplies is no element-wise work.
constexpr Mark kMarks[] = {
    {StepPart::kCopies, "memcpy htod"},
    {StepPart::kCopies, "memcpy dtoh"},
    {StepPart::kAttention, "flash"},
    {StepPart::kAttention, "fmha"},
    {StepPart::kAttention, "attention"},
    {StepPart::kAttention, "attn"},
    {StepPart::kAttention, "sdpa"},
    {StepPart::kAttention, "masked_softmax"},
    {StepPart::kOptimizer, "multi_tensor_apply"},
    {StepPart::kOptimizer, "adam"},
    {StepPart::kOptimizer, "lamb"},
    {StepPart::kOptimizer, "adafactor"},
    {StepPart::kOptimizer, "muon"},
    {StepPart::kMatrix, "gemm"},
    {StepPart::kMatrix, "gemv"},
    {StepPart::kMatrix, "cutlass"},
    {StepPart::kMatrix, "cublas"},
    {StepPart::kMatrix, "nvjet"},
    {StepPart::kMatrix, "xmma"},
    {StepPart::kMatrix, "splitk"},
    {StepPart::kMatrix, "matmul"},
    {StepPart::kMatrix, "cijk_"},
    {StepPart::kMatrix, "triton_tem"},
    {StepPart::kMatrix, "triton_mm"},
    {StepPart::kMatrix, "scudnn"},
    {StepPart::kMatrix, "dgrad"},
    {StepPart::kMatrix, "wgrad"},
    {StepPart::kMatrix, "convolve"},
    {StepPart::kElementWise, "elementwise"},
    {StepPart::kElementWise, "triton"},
    {StepPart::kElementWise, "reduce"},
    {StepPart::kElementWise, "softmax"},
    {StepPart::kElementWise, "norm"},
    {StepPart::kElementWise, "cudnn::bn"},
    {StepPart::kElementWise, "dropout"},
    {StepPart::kElementWise, "gelu"},
    {StepPart::kElementWise, "silu"},
    {StepPart::kElementWise, "swiglu"},
    {StepPart::kElementWise, "relu"},
    {StepPart::kElementWise, "rope"},
    {StepPart::kElementWise, "rotary"},
    {StepPart::kElementWise, "bias"},
    {StepPart::kElementWise, "loss"},
    {StepPart::kElementWise, "entropy"},
    {StepPart::kElementWise, "copy"},
    {StepPart::kElementWise, "memcpy"},
    {StepPart::kElementWise, "memset"},
    {StepPart::kElementWise, "fill"},
    {StepPart::kElementWise, "cast"},
    {StepPart::kElementWise, "quantize"},
    {StepPart::kElementWise, "transpose"},
    {StepPart::kElementWise, "permute"},
    {StepPart::kElementWise, "nchw"},
    {StepPart::kElementWise, "embedding"},
    {StepPart::kElementWise, "index"},
    {StepPart::kElementWise, "gather"},
    {StepPart::kElementWise, "scatter"},
    {StepPart::kElementWise, "pool"},
    {StepPart::kElementWise, "cub::"},
    {StepPart::kElementWise, "at::native"},
};

}  // namespace

StepPart KindOfKernel(std::string_view name) {
  const std::string lower = absl::AsciiStrToLower(std::string(name));
  for (const Mark& mark : kMarks)
    if (lower.find(mark.text) != std::string::npos) return mark.part;
  return StepPart::kUnknown;
}

}  // namespace lockstep::plan
