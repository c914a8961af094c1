#include "lockstep/probe/gemm.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/client/client.h"
#include "lockstep/probe/cores.h"
#include "lockstep/probe/exact.h"
#include "lockstep/probe/gemm_kernels.h"

namespace lockstep::probe {
namespace {

constexpr size_t kValues = static_cast<size_t>(kGemmSize) * kGemmSize;
constexpr double kFlopPerProduct = 2.0 * kGemmSize * kGemmSize * kGemmSize;

struct CoreResult {
  uint64_t products = 0, wrong = 0;
  double seconds = 0;
  std::string first_wrong;

  double Rate() const { return static_cast<double>(products) * kFlopPerProduct / seconds * 1e-9; }
};

class CoreRun {
 public:
  CoreRun(const std::vector<float>& a, const std::vector<float>& b, int core, const TamperGemm& tamper)
      : a_(a), b_(b), core_(core), tamper_(tamper) {}

  CoreResult Run(const Budget& budget) {
    const std::vector<GemmKernel> kernels = GemmKernels();
    do {
      for (const GemmKernel& kernel : kernels) Once(budget, kernel);
    } while (!budget.Over());
    return std::move(result_);
  }

 private:
  void Once(const Budget& budget, const GemmKernel& kernel) {
    const Nanos begin = budget.Now();
    kernel.multiply(a_.data(), b_.data(), c_.data());
    result_.seconds += ToSeconds(budget.Now() - begin).value;
    ++result_.products;
    if (tamper_) tamper_(core_, c_);
    const uint32_t crc = ls_crc32c(0, c_.data(), c_.size() * sizeof(float));
    if (crc != kernel.expected_crc && result_.wrong++ == 0) {
      result_.first_wrong = fmt::format("core {}, kernel {}, product {}: CRC32C {:08x}, expected {:08x}", core_,
                                        kernel.name, result_.products, crc, kernel.expected_crc);
    }
  }

  const std::vector<float>& a_;
  const std::vector<float>& b_;
  const int core_;
  const TamperGemm& tamper_;
  std::vector<float> c_ = std::vector<float>(kValues);
  CoreResult result_;
};

Measurement Bits(const std::vector<int>& cores, const std::vector<CoreResult>& results) {
  Measurement bits{.name = "gemm.bits", .value = 0, .unit = "errors"};
  uint64_t products = 0;
  std::vector<int> bad;
  std::string first;
  for (size_t i = 0; i < results.size(); ++i) {
    products += results[i].products;
    bits.value += static_cast<double>(results[i].wrong);
    if (results[i].wrong == 0) continue;
    if (bad.empty()) first = results[i].first_wrong;
    bad.push_back(cores[i]);
  }
  bits.ok = bad.empty();
  bits.text = bits.ok ? fmt::format("{} products on {} cores, all as they should be", products, cores.size())
                      : fmt::format("{:.0f} of {} products wrong, on core {}; first {}", bits.value, products,
                                    fmt::join(bad, ", "), first);
  return bits;
}

}  // namespace

std::vector<Measurement> MeasureGemm(const Budget& budget, const std::vector<int>& cores, const TamperGemm& tamper) {
  const std::vector<float> a = FixedValues("gemm a", kValues, 1), b = FixedValues("gemm b", kValues, 1);
  std::vector<CoreResult> results(cores.size());
  OnEachCore(cores, [&](size_t i) { results[i] = CoreRun(a, b, cores[i], tamper).Run(budget); });
  double all = 0;
  size_t slowest = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    all += results[i].Rate();
    if (results[i].Rate() < results[slowest].Rate()) slowest = i;
  }
  return {Bits(cores, results),
          {.name = "gemm.all", .value = all, .unit = "GFLOP/s", .text = fmt::format("{} cores at once", cores.size())},
          {.name = "gemm.slowest",
           .value = results[slowest].Rate(),
           .unit = "GFLOP/s",
           .text = fmt::format("core {}", cores[slowest])}};
}

}  // namespace lockstep::probe
