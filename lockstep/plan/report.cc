#include "lockstep/plan/report.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace lockstep::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kNudge = 1e-3;

// Six operations per active parameter and token, and attention in full, as most sources count.
double Mfu(const Workload& w, double step_s) {
  const double h = w.hidden, tokens = double(w.global_batch) * w.sequence, inner = double(w.heads) * w.head_dim;
  const double width = w.experts > 0 ? double(w.expert_ffn) * w.top_k : w.ffn;
  const double layer = 2 * h * inner + 2 * h * w.kv_heads * w.head_dim + (w.gated ? 3 : 2) * h * width;
  const double flops =
      6 * (w.layers * layer + h * w.vocabulary) * tokens + 12.0 * w.layers * inner * w.sequence * tokens;
  return flops / (w.accelerators * w.machine.bf16 * step_s);
}

double Elasticity(const Workload& workload, const Rates& rates, double Machine::* figure) {
  Workload more = workload;
  more.machine.*figure *= 1 + kNudge;
  const double before = PredictStep(workload, rates).total().value, after = PredictStep(more, rates).total().value;
  return std::log(after / before) / std::log1p(kNudge);
}

Json Sensitivities(const Workload& w, const Rates& rates) {
  struct Figure {
    const char* name;
    double Machine::* member;
  };
  Json all = Json::object();
  for (const Figure& figure : {Figure{"machine.bf16_tflops", &Machine::bf16},
                               {"machine.fp8_tflops", &Machine::fp8},
                               {"machine.fp4_tflops", &Machine::fp4},
                               {"machine.memory_gb_s", &Machine::bandwidth},
                               {"machine.scale_up_gb_s", &Machine::scale_up},
                               {"machine.nic_gb_s", &Machine::nic}})
    if (w.machine.*figure.member > 0) all[figure.name] = Elasticity(w, rates, figure.member);
  return all;
}

}  // namespace

Candidate Predict(const Workload& workload, const Rates& rates) {
  return {workload, PredictStep(workload, rates), PredictMemory(workload)};
}

Json PredictionReport(const Candidate& one, const Rates& rates) {
  const Workload& w = one.workload;
  const double seconds = one.step.total().value;
  Json breakdown = Json::object();
  for (size_t i = 0; i < kParts; ++i)
    if (one.step.seconds[i] > 0) breakdown[PartName(static_cast<Part>(i))] = one.step.seconds[i];
  const MemoryUse& use = one.memory;
  return {{"layout", LayoutText(w)},
          {"step_time_s", seconds},
          {"lo80", seconds * std::exp(rates.residual_low)},
          {"hi80", seconds * std::exp(rates.residual_high)},
          {"tokens_per_s", double(w.global_batch) * w.sequence / seconds},
          {"mfu", Mfu(w, seconds)},
          {"memory_gib",
           {{"states", use.states / kGiB},
            {"activations", use.activations / kGiB},
            {"logits", use.logits / kGiB},
            {"workspace", use.workspace / kGiB},
            {"context", use.context / kGiB},
            {"total", use.total() / kGiB},
            {"capacity", w.machine.memory / kGiB}}},
          {"breakdown", breakdown},
          {"sensitivities", Sensitivities(w, rates)}};
}

Json SearchReport(const SearchResult& result, const Rates& rates) {
  Json best = Json::array(), pareto = Json::array();
  for (const Candidate& one : result.best) best.push_back(PredictionReport(one, rates));
  for (const Candidate& one : result.pareto)
    pareto.push_back({{"layout", LayoutText(one.workload)},
                      {"step_time_s", one.step.total().value},
                      {"memory_gib", one.memory.total() / kGiB}});
  return {{"candidates", result.tried}, {"fitting", result.fitting}, {"best", best}, {"pareto", pareto}};
}

}  // namespace lockstep::plan
