#include "lockstep/plan/rates.h"

#include <fmt/format.h>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::plan {
namespace {

constexpr RateField kFields[] = {
    {"gemm", &Rates::gemm, .3, .95},
    {"gemm_fp8", &Rates::gemm_fp8, .2, .9},
    {"gemm_fp4", &Rates::gemm_fp4, .1, .9},
    {"half_m", &Rates::half_m, 0, 4000},
    {"half_n", &Rates::half_n, 0, 4000},
    {"half_k", &Rates::half_k, 0, 4000},
    {"flash", &Rates::flash, .1, .9},
    {"unfused", &Rates::unfused, .1, .9},
    {"unaligned", &Rates::unaligned, .02, 1},
    {"softmax_passes", &Rates::softmax_passes, 1, 20},
    {"fused_bytes", &Rates::fused_bytes, 2, 60},
    {"unfused_bytes", &Rates::unfused_bytes, 5, 120},
    {"eager_bytes", &Rates::eager_bytes, 5, 120},
    {"kernel_s", &Rates::kernel, 0, 30e-6},
    {"scale_up", &Rates::scale_up, .2, 1},
    {"network", &Rates::network, .1, 1},
    {"latency_s", &Rates::latency, 0, 100e-6},
    {"tensor_hidden", &Rates::tensor_hidden, 0, .95},
    {"context_hidden", &Rates::context_hidden, 0, 1},
    {"expert_hidden", &Rates::expert_hidden, 0, .95},
    {"data_hidden", &Rates::data_hidden, 0, 1},
    {"sharded_hidden", &Rates::sharded_hidden, 0, 1},
    {"pipeline_hidden", &Rates::pipeline_hidden, 0, 1},
    {"expert_gemm", &Rates::expert_gemm, .2, 1},
    {"optimizer_bytes", &Rates::optimizer_bytes, 12, 80},
    {"step_s", &Rates::step, 0, .3},
    {"straggle", &Rates::straggle, 0, .03},
};

}  // namespace

std::span<const RateField> RateFields() { return kFields; }

absl::StatusOr<Rates> ReadRates(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  cluster::TableReader in(root, path);
  Rates rates;
  for (const RateField& field : kFields) in.Number(field.name, cluster::Sign::kNotNegative, rates.*field.member);
  in.Number("residual_low", cluster::Sign::kAny, rates.residual_low);
  in.Number("residual_high", cluster::Sign::kAny, rates.residual_high);
  LS_RETURN_IF_ERROR(in.Finish());
  for (const RateField& field : kFields) {
    const double value = rates.*field.member;
    if (value < field.least || value > field.most)
      return InvalidArgument("{}: {} must be {:g} to {:g}, found {:g}", path, field.name, field.least, field.most,
                             value);
  }
  if (rates.residual_low > rates.residual_high) return InvalidArgument("{}: residual_low is above residual_high", path);
  return rates;
}

std::string RatesText(const Rates& rates, const std::string& about) {
  std::string text = about;
  for (const RateField& field : kFields) text += fmt::format("{} = {:.5g}\n", field.name, rates.*field.member);
  return text + fmt::format("residual_low = {:.4f}\nresidual_high = {:.4f}\n", rates.residual_low, rates.residual_high);
}

}  // namespace lockstep::plan
