#include "lockstep/plan/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::plan {
namespace {

using enum Scope;
using enum Scale;

constexpr RateField kFields[] = {
    {"gemm", &Rates::gemm, kHardware, kShare, .3, .1, .98},
    {"gemm_fp8", &Rates::gemm_fp8, kHardware, kShare, .35, .1, .98},
    {"gemm_fp4", &Rates::gemm_fp4, kHardware, kShare, .4, .05, .98},
    {"row_scales", &Rates::row_scales, kHardware, kShare, .4, .1, 1},
    {"half_m", &Rates::half_m, kHardware, kPositive, .6, 0, 2e4},
    {"half_n", &Rates::half_n, kHardware, kPositive, .6, 0, 2e4},
    {"half_k", &Rates::half_k, kHardware, kPositive, .6, 0, 2e4},
    {"flash", &Rates::flash, kHardware, kShare, .3, .05, .98},
    {"unfused", &Rates::unfused, kHardware, kShare, .5, .05, .98},
    {"unaligned", &Rates::unaligned, kHardware, kShare, .7, .005, 1},
    {"stream", &Rates::stream, kHardware, kShare, .4, .1, 1},
    {"kernel_s", &Rates::kernel, kHardware, kPositive, .15, 0, 1e-3},
    {"kernel_gap_s", &Rates::kernel_gap, kHardware, kPositive, .3, 0, 1e-4},
    {"scale_up", &Rates::scale_up, kHardware, kShare, .5, .05, 1},
    {"network", &Rates::network, kHardware, kShare, .6, .02, 1},
    {"latency_s", &Rates::latency, kHardware, kPositive, .6, 0, 1e-2},
    {"straggle", &Rates::straggle, kHardware, kPositive, .7, 0, .1},
    {"attention", &Rates::attention, kStack, kPositive, .35, .05, 5},
    {"context_imbalance", &Rates::context_imbalance, kStack, kPositive, 1, 0, 5},
    {"softmax_passes", &Rates::softmax_passes, kStack, kPositive, .3, 1, 50},
    {"glue_bytes", &Rates::glue_bytes, kStack, kPositive, .5, 1, 1e3},
    {"kernels", &Rates::kernels, kStack, kPositive, .1, 0, 1e4},
    {"expert_kernels", &Rates::expert_kernels, kStack, kPositive, .8, 0, 1e4},
    {"eager_softmax", &Rates::eager_softmax, kStack, kPositive, .5, 0, 1e3},
    {"blocked_s", &Rates::blocked, kStack, kPositive, .5, 0, 1e-3},
    {"microbatch_s", &Rates::microbatch, kStack, kPositive, 1, 0, 1},
    {"step_s", &Rates::step, kStack, kPositive, 1, 0, 10},
    {"expert_gemm", &Rates::expert_gemm, kStack, kShare, .7, .05, 1},
    {"tensor_hidden", &Rates::tensor_hidden, kStack, kShare, .7, 0, 1},
    {"context_hidden", &Rates::context_hidden, kStack, kShare, .7, 0, 1},
    {"expert_hidden", &Rates::expert_hidden, kStack, kShare, .7, 0, 1},
    {"data_hidden", &Rates::data_hidden, kStack, kShare, .8, 0, 1},
    {"sharded_hidden", &Rates::sharded_hidden, kStack, kShare, .8, 0, 1},
    {"sharded_rate", &Rates::sharded_rate, kStack, kShare, .6, .02, 1},
    {"pipeline_hidden", &Rates::pipeline_hidden, kStack, kShare, .8, 0, 1},
    {"optimizer_bytes", &Rates::optimizer_bytes, kStack, kPositive, .3, 4, 200},
};

static_assert(std::size(kFields) == std::tuple_size_v<decltype(Rates::unsure)>);
constexpr double kLeastFigure = 1e-9;  // a logarithm needs one

}  // namespace

std::span<const RateField> RateFields() { return kFields; }

double ToUnknown(const RateField& field, double value) {
  value = std::max(value, kLeastFigure);
  if (field.scale == Scale::kShare) value = std::min(value, 1 - kLeastFigure);
  return field.scale == Scale::kShare ? std::log(value / (1 - value)) : std::log(value);
}
double FromUnknown(const RateField& field, double unknown) {
  const double value = field.scale == Scale::kShare ? 1 / (1 + std::exp(-unknown)) : std::exp(unknown);
  return std::clamp(value, field.least, field.most);
}

void ReadRateFields(cluster::TableReader& in, Scope scope, Rates& rates) {
  for (size_t f = 0; f < std::size(kFields); ++f) {
    const RateField& field = kFields[f];
    if (field.scope != scope) continue;
    in.Number(fmt::format("{}_unsure", field.name), cluster::Sign::kNotNegative, rates.unsure[f]);
    double& value = rates.*field.member;
    in.Number(field.name, cluster::Sign::kNotNegative, value);
    if (value < field.least || value > field.most)
      in.Fail(field.name,
              fmt::format("{} must be {:g} to {:g}, found {:g}", field.name, field.least, field.most, value));
  }
}

absl::StatusOr<Rates> ReadRates(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  cluster::TableReader in(root, path);
  in.Require({"gemm"});
  Rates rates;
  ReadRateFields(in, kHardware, rates);
  ReadRateFields(in, kStack, rates);
  in.Number("scatter", cluster::Sign::kNotNegative, rates.scatter);
  in.Number("doubt", cluster::Sign::kNotNegative, rates.doubt);
  LS_RETURN_IF_ERROR(in.Finish());
  return rates;
}

std::string RatesText(const Rates& rates, Scope scope) {
  std::string text;
  for (size_t f = 0; f < std::size(kFields); ++f) {
    const char* name = kFields[f].name;
    if (kFields[f].scope == scope)
      text += fmt::format("{0} = {1:.5g}\n{0}_unsure = {2:.3g}\n", name, rates.*kFields[f].member, rates.unsure[f]);
  }
  if (scope == kHardware) text += fmt::format("scatter = {:.4f}\ndoubt = {:.4f}\n", rates.scatter, rates.doubt);
  return text;
}

}  // namespace lockstep::plan
