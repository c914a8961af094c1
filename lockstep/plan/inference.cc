#include "lockstep/plan/inference.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/plan/bandwidth.h"
#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kBytes = 2, kContext = 3.2e9;
constexpr double kKernels = 12;  // of a layer, where one token of each sequence is computed

// Bytes of each weight.
double WeightBytes(const Workload& w) {
  if (w.precision == Precision::kFp4) return .5;
  return w.precision == Precision::kFp8 ? 1 : kBytes;
}
// Of a sequence: keys and values of its tokens, or of those in a window, in all layers and the heads of one
// accelerator.
double CacheOfSequence(const Workload& w, double tokens) {
  const double values = w.latent.kv_rank > 0 ? w.latent.kv_rank + w.latent.rope : 2 * w.LocalKvHeads() * w.head_dim;
  const double windowed = w.window.layers, whole = w.layers - windowed;
  return kBytes * values * (whole * tokens + windowed * std::min<double>(w.window.tokens, tokens));
}
// Of the experts those that a batch does not reach: each with the chance that no token goes there.
double UnreadParameters(const Workload& w, int batch) {
  if (w.experts == 0) return 0;
  return w.MixedLayers() * w.ExpertParameters() * std::pow(1 - double(w.top_k) / w.experts, batch);
}

// The layers of the stage that has most, over those of one in the mean.
double Most(const Workload& w) {
  const int most = (w.layers + w.pp - 1) / w.pp;
  return double(most) * w.pp / w.layers;
}

// One token of each sequence: weights, keys and values are read once; products are too small to be anything else.
double TokenSeconds(const Workload& w, const Rates& r, const Requests& asked) {
  const Machine& m = w.machine;
  const double context = asked.prompt + asked.output / 2.0, bandwidth = m.bandwidth * r.stream;
  const double weights = (w.LayersParameters() - UnreadParameters(w, asked.batch)) / w.tp * WeightBytes(w);
  const double cache = CacheOfSequence(w, context) * asked.batch;
  const double read = std::max((weights + cache) / bandwidth, w.layers * kKernels * r.kernel);
  const double compute = 2 * w.ActiveParameters() / w.tp * asked.batch / (m.Peak(w.precision) * GemmShare(w, r));
  const double bytes = kBytes * asked.batch * w.hidden, n = w.tp;
  const double reduce = 2 * bytes * (n - 1) / n / (m.scale_up * r.scale_up) + r.latency * m.LatenciesOfReduce(n);
  const double head = double(w.vocabulary) * w.hidden / w.tp * kBytes / bandwidth;
  const double transfer = w.pp == 1 ? 0 : (bytes / PairRate(m, r, double(w.tp) * w.pp) + r.latency) * (w.pp - 1);
  return std::max(read, compute) + 2 * w.layers * reduce + head + transfer;
}

}  // namespace

InferenceTime PredictInference(const Workload& workload, const Rates& rates, const Requests& asked) {
  Workload prompt = workload;
  prompt.microbatch = prompt.global_batch = asked.batch;
  prompt.dp = 1;
  prompt.sequence = asked.prompt;
  // Engines give each rank a copy of the head that it shares.
  if (prompt.latent.kv_rank == 0) prompt.kv_heads = std::max(prompt.kv_heads, prompt.tp);
  const StageTimes stage = PredictStage(prompt, rates);
  InferenceTime time;
  time.first_token = workload.layers * stage.layer.forward + (workload.pp - 1) * stage.transfer;
  time.token = TokenSeconds(workload, rates, asked);
  const double embedding = double(workload.vocabulary) * workload.hidden / workload.tp * kBytes;
  time.weights = Most(workload) * workload.LayersParameters() / workload.tp / workload.pp * WeightBytes(workload) +
                 embedding * workload.EndEmbeddings();
  // While a stage waits for the others it answers other batches, as many as there are stages.
  time.cache = Most(workload) * CacheOfSequence(workload, double(asked.prompt) + asked.output) * asked.batch;
  const double width = std::max(workload.hidden, workload.ffn / workload.tp);
  time.workspace = kContext + 4 * kBytes * asked.batch * asked.prompt * width;
  return time;
}

std::vector<InferenceChoice> SearchInference(const Workload& base, const Rates& rates, const Requests& asked) {
  std::vector<InferenceChoice> all;
  Workload w = base;
  for (w.tp = 1; w.tp <= std::min(base.heads, base.machine.domain); ++w.tp) {
    for (w.pp = 1; w.pp <= base.layers; ++w.pp) {
      const int64_t ranks = int64_t{w.tp} * w.pp;
      if (!base.CanSplitHeads(w.tp) || ranks > base.accelerators) continue;
      w.dp = static_cast<int>(base.accelerators / ranks);
      w.sequence_parallel = w.tp > 1;
      InferenceChoice one{w, PredictInference(w, rates, asked), 0};
      if (one.time.memory() > w.machine.memory) continue;
      const double seconds = one.time.first_token + std::max(0, asked.output - 1) * one.time.token;
      one.tokens_per_s = double(asked.output) * asked.batch * w.dp * w.pp / Most(w) / seconds;
      all.push_back(std::move(one));
    }
  }
  std::ranges::stable_sort(all, std::greater<>(), &InferenceChoice::tokens_per_s);
  return all;
}

namespace {

std::string LayoutOf(const Workload& w) {
  const int64_t idle = w.accelerators - int64_t{w.tp} * w.pp * w.dp;
  return fmt::format("tp {}, pp {}, replicas {}{}", w.tp, w.pp, w.dp, idle > 0 ? fmt::format(", {} idle", idle) : "");
}

// Each of these alone, as far as it is tried and found to be enough.
std::string WhatWouldServe(const Workload& base, const Rates& rates, const Requests& asked) {
  const auto serves = [&](const Workload& w, int batch) {
    Requests less = asked;
    less.batch = batch;
    return !SearchInference(w, rates, less).empty();
  };
  std::vector<std::string> all;
  for (int batch = asked.batch / 2; batch > 0 && all.empty(); batch /= 2)
    if (serves(base, batch)) all.push_back(fmt::format("--batch {}", batch));
  Workload w = base;
  for (const Precision precision : {Precision::kFp8, Precision::kFp4}) {
    w.precision = precision;
    if (precision <= base.precision || w.machine.Peak(precision) == 0 || !serves(w, asked.batch)) continue;
    all.push_back(precision == Precision::kFp8 ? "--precision fp8" : "--precision fp4");
    break;
  }
  w = base;
  while (w.accelerators <= kMostAccelerators / 2) {
    w.accelerators *= 2;
    if (!serves(w, asked.batch)) continue;
    all.push_back(fmt::format("{} accelerators", w.accelerators));
    break;
  }
  if (all.empty()) return "no smaller batch, other precision or number of accelerators would do";
  return fmt::format("what would do: {}", fmt::join(all, ", "));
}

}  // namespace

absl::StatusOr<Json> InferenceReport(const Workload& base, const Rates& rates, const Requests& asked, size_t keep) {
  if (!base.causal) return InvalidArgument("inference is of decoders, token by token, not of vision transformers");
  std::vector<InferenceChoice> all = SearchInference(base, rates, asked);
  if (all.empty())
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        fmt::format("no layout holds the weights, and the keys and values of {} sequences of {} tokens, in "
                    "{:.1f} GiB; {}",
                    asked.batch, asked.prompt + asked.output, base.machine.memory / kGiB,
                    WhatWouldServe(base, rates, asked)));
  if (all.size() > keep) all.erase(all.begin() + std::ptrdiff_t(keep), all.end());
  Json best = Json::array();
  for (const InferenceChoice& one : all)
    best.push_back({{"layout", LayoutOf(one.workload)},
                    {"first_token_s", one.time.first_token},
                    {"token_s", one.time.token},
                    {"tokens_per_s", one.tokens_per_s},
                    {"memory_gib",
                     {{"weights", one.time.weights / kGiB},
                      {"cache", one.time.cache / kGiB},
                      {"workspace", one.time.workspace / kGiB},
                      {"total", one.time.memory() / kGiB},
                      {"capacity", one.workload.machine.memory / kGiB}}}});
  return Json{{"best", best}};
}

}  // namespace lockstep::plan
