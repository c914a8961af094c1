#include "lockstep/probe/aligned.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lockstep/probe/cores.h"

namespace lockstep::probe {
namespace {

// How often a core gave each checksum, and the tensors of one run of each.
struct CoreRuns {
  std::map<uint32_t, int> times;
  std::map<uint32_t, std::vector<TensorBits>> tensors;
};

CoreRuns RunOften(const Budget& budget, const AlignedOptions& options, Precision precision) {
  CoreRuns runs;
  for (int run = 0; run < options.repeat || !budget.Over(); ++run) {
    if (budget.Stopped()) break;
    AlignedBits bits = RunAlignedModel(options.shape, precision, options.tamper);
    ++runs.times[bits.crc];
    runs.tensors.try_emplace(bits.crc, std::move(bits.tensors));
  }
  return runs;
}

size_t CountDifferent(const std::vector<TensorBits>& found, const std::vector<TensorBits>& usual) {
  size_t different = 0;
  for (size_t i = 0; i < found.size(); ++i) different += found[i] != usual[i];
  return different;
}

Measurement Judge(const std::vector<int>& cores, const std::vector<CoreRuns>& all, const AlignedOptions& options,
                  Precision precision) {
  const uint32_t expected = ExpectedAlignedCrc(options.shape, precision);
  CoreRuns sum;
  int runs = 0;
  std::vector<int> bad;
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto& [crc, times] : all[i].times) sum.times[crc] += times, runs += times;
    for (const auto& [crc, tensors] : all[i].tensors) sum.tensors.try_emplace(crc, tensors);
    if (std::ranges::any_of(all[i].times, [&](const auto& one) { return one.first != expected; }))
      bad.push_back(cores[i]);
  }
  Measurement bits{.name = fmt::format("aligned.{}.{}", precision == Precision::kSingle ? "single" : "bfloat16",
                                       options.shape.Text()),
                   .unit = "crc32c"};
  if (runs == 0) return bits;
  const auto usual = std::ranges::max_element(sum.times, {}, [](const auto& one) { return one.second; });
  bits.value = usual->first;
  bits.ok = bad.empty();
  bits.text = fmt::format("{:08x} in {} of {} runs on {} cores", usual->first, usual->second, runs, cores.size());
  if (bits.ok) return bits;
  bits.text += fmt::format("; expected {:08x} in all; others on core {}", expected, fmt::join(bad, ", "));
  if (sum.tensors.contains(expected)) {
    const auto other = std::ranges::find_if(sum.tensors, [&](const auto& one) { return one.first != expected; });
    bits.text += fmt::format("; {} of {} tensors differ", CountDifferent(other->second, sum.tensors.at(expected)),
                             other->second.size());
  }
  return bits;
}

}  // namespace

std::vector<Measurement> MeasureAligned(const Budget& budget, const std::vector<int>& cores,
                                        const AlignedOptions& options) {
  std::vector<Measurement> measured;
  for (const Precision precision : {Precision::kSingle, Precision::kBfloat16}) {
    const Budget share = precision == Precision::kSingle ? budget.Of({budget.Left().value / 2}) : budget;
    std::vector<CoreRuns> runs(cores.size());
    OnEachCore(cores, [&](size_t i) { runs[i] = RunOften(share, options, precision); });
    measured.push_back(Judge(cores, runs, options, precision));
  }
  return measured;
}

}  // namespace lockstep::probe
