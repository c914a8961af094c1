#include "lockstep/plan/workload.h"

#include <algorithm>
#include <numeric>

namespace lockstep::plan {

namespace {

constexpr double kRounding = 1e-6;  // of a layer's number, where stages have parts of layers

struct Size {
  const char* name;
  int value;
};

absl::Status CheckSizes(std::initializer_list<Size> sizes) {
  for (const Size& size : sizes)
    if (size.value < 1) return InvalidArgument("{} must be at least 1, found {}", size.name, size.value);
  return absl::OkStatus();
}

}  // namespace

absl::Status Workload::ValidateModel() const {
  LS_RETURN_IF_ERROR(CheckSizes({{"layers", layers},
                                 {"hidden", hidden},
                                 {"ffn", ffn},
                                 {"heads", heads},
                                 {"kv_heads", kv_heads},
                                 {"head_dim", head_dim},
                                 {"vocab", vocabulary},
                                 {"seq", sequence}}));
  if (kv_heads > heads || heads % kv_heads != 0)
    return InvalidArgument("{} heads can't share {} of keys and values: these must divide them", heads, kv_heads);
  if (experts > 0 && (top_k < 1 || expert_ffn < 1 || top_k > experts))
    return InvalidArgument("{} experts need a topk of 1 to {} and a moe_ffn, found {} and {}", experts, experts, top_k,
                           expert_ffn);
  if (dense_layers < 0 || dense_layers > layers || shared_experts < 0)
    return InvalidArgument("dense_layers must be 0 to {}, and shared_experts not below 0; found {} and {}", layers,
                           dense_layers, shared_experts);
  if (experts > 0 && (experts_every < 1 || MixedLayers() == 0))
    return InvalidArgument("experts in every {} of {} layers, of which {} come first and have none: that is no layer",
                           experts_every, layers, dense_layers);
  if (window.layers < 0 || window.layers > layers || (window.layers > 0 && window.tokens < 1))
    return InvalidArgument("0 to {} layers can have a window, of at least one token; found {} of {}", layers,
                           window.layers, window.tokens);
  if (frozen.layers < 0 || frozen.layers >= layers || (frozen.layers > 0 && training == Training::kLora))
    return InvalidArgument("0 to {} of {} layers can be frozen, and none beside adapters; found {}", layers - 1, layers,
                           frozen.layers);
  if (frozen.embedding && tied_embeddings)
    return InvalidArgument("the embedding is the output layer too, so it can't be frozen alone");
  return absl::OkStatus();
}

absl::Status Workload::Validate() const {
  LS_RETURN_IF_ERROR(ValidateModel());
  LS_RETURN_IF_ERROR(CheckSizes({{"gbs", global_batch},
                                 {"mbs", microbatch},
                                 {"gpus", accelerators},
                                 {"tp", tp},
                                 {"pp", pp},
                                 {"dp", dp},
                                 {"cp", cp},
                                 {"ep", ep},
                                 {"vp", chunks},
                                 {"moe_chunks", moe_chunks}}));
  const int64_t world = int64_t{tp} * pp * dp * cp;
  if (world != accelerators)
    return InvalidArgument("tp {} x pp {} x dp {} x cp {} is {}, but there are {} accelerators", tp, pp, dp, cp, world,
                           accelerators);
  if (heads % tp != 0 && heads >= tp) return InvalidArgument("{} heads can't be split over tp {}", heads, tp);
  if (pp > layers) return InvalidArgument("{} layers can't be split over pp {}", layers, pp);
  if (!stage_layers.empty()) {
    const int64_t all = std::accumulate(stage_layers.begin(), stage_layers.end(), int64_t{0});
    if (std::ssize(stage_layers) != pp || all != layers || *std::ranges::min_element(stage_layers) < 1)
      return InvalidArgument("{} stages of {} layers together, each at least 1, are needed; found {} of {}", pp, layers,
                             stage_layers.size(), all);
  }
  if (zero < 0 || zero > 3) return InvalidArgument("zero must be 0 to 3, found {}", zero);
  if (experts > 0 && experts % ep != 0) return InvalidArgument("{} experts can't be split over ep {}", experts, ep);
  if (static_cast<int64_t>(dp) * microbatch > global_batch)
    return InvalidArgument("a batch of {} can't be split over dp {} in microbatches of {}", global_batch, dp,
                           microbatch);
  return absl::OkStatus();
}

int Workload::Microbatches() const { return std::max(1, (global_batch + dp * microbatch / 2) / (dp * microbatch)); }

double Workload::StageLayers(int stage) const {
  return stage_layers.empty() ? double(layers) / pp : stage_layers[static_cast<size_t>(stage)];
}

double Workload::FirstLayer(int stage) const {
  if (stage_layers.empty()) return double(layers) * stage / pp;
  return std::accumulate(stage_layers.begin(), stage_layers.begin() + stage, 0.0);
}

double Workload::StageMixed(int stage) const {
  if (experts_every == 1) return StageLayers(stage) * MixedShare();
  const double end = FirstLayer(stage) + StageLayers(stage);
  return MixedBelow(static_cast<int>(end + kRounding)) - MixedBelow(static_cast<int>(FirstLayer(stage) + kRounding));
}

bool Workload::AllStagesMixedAlike() const {
  if (experts == 0 || experts_every == 1) return true;
  for (int stage = 1; stage < pp; ++stage)
    if (StageMixed(stage) != StageMixed(0)) return false;
  return true;
}

std::vector<StageRun> Workload::StageRuns() const {
  std::vector<StageRun> runs;
  double below = 0;
  for (int stage = 0; stage < pp; ++stage) {
    const double has = StageLayers(stage), cold = std::clamp(frozen.layers - below, 0.0, has);
    const double mixed = StageMixed(stage);
    below += has;
    if (!runs.empty() && runs.back().layers == has && runs.back().frozen == cold && runs.back().mixed == mixed)
      ++runs.back().count;
    else
      runs.push_back({stage, 1, has, cold, mixed});
  }
  return runs;
}

double Workload::LayerParameters() const {
  if (experts == 0) return DenseLayerParameters();
  const double matrices = gated ? 3 : 2, h = hidden;
  return AttentionParameters() + h * experts + matrices * h * expert_ffn * (experts + shared_experts);
}

double Workload::DenseLayerParameters() const { return AttentionParameters() + (gated ? 3.0 : 2.0) * hidden * ffn; }

double Workload::ScoreDim() const { return latent.kv_rank > 0 ? (head_dim + latent.value_dim) / 2.0 : head_dim; }

double Workload::AttentionParameters() const {
  if (latent.kv_rank == 0) return 2.0 * hidden * head_dim * (heads + kv_heads);
  const double all = heads, width = hidden, ranks = latent.kv_rank + latent.rope;
  const double query = latent.q_rank > 0 ? latent.q_rank * (width + all * head_dim) : width * all * head_dim;
  const double keys = latent.kv_rank * all * (head_dim - latent.rope + latent.value_dim);
  return query + width * ranks + keys + all * latent.value_dim * width;
}

double Workload::ActiveParameters() const {
  const double matrices = gated ? 3 : 2, mixed = MixedLayers();
  const double width = mixed * expert_ffn * (top_k + shared_experts) + (layers - mixed) * ffn;
  return layers * AttentionParameters() + matrices * hidden * width;
}

double Workload::ExpertParameters() const {
  return experts > 0 ? (gated ? 3.0 : 2.0) * hidden * expert_ffn * experts : 0;
}

double Workload::LayersParameters() const {
  const double mixed = MixedLayers();
  return mixed * LayerParameters() + (layers - mixed) * DenseLayerParameters();
}

double Workload::Parameters() const { return LayersParameters() + 2.0 * vocabulary * hidden; }

}  // namespace lockstep::plan
