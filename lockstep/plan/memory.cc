#include "lockstep/plan/memory.h"

#include <algorithm>
#include <cmath>

#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

constexpr double kContext = 3.2e9, kFragmentation = .03;
constexpr double kInput = 2;  // bytes of a layer's input, per token and hidden unit

// Bytes of weights, gradients and optimizer of each parameter that a rank holds: 16-bit weights, and the two moments
// and the master weight of Adam, which are shared from ZeRO 1 on. A pipeline with ZeRO 3 keeps weights and gradients
// whole between its microbatches, or it would gather and scatter them each time.
double StateBytes(const MemoryTerms& t, const Variant& v, double ranks) {
  const double gradient = t.gradient_bytes, whole = CopiesOf(v.schedule) * (2 + gradient);
  switch (v.zero) {
    case 0:
      return whole + 12;
    case 1:
      return whole + 12 / ranks;
    case 2:
      return CopiesOf(v.schedule) * 2 + (gradient + 12) / ranks;
    default:
      return 16 / ranks + (t.pp > 1 && ranks > 1 ? whole : 0);
  }
}

// Parameters of the stage.
struct Held {
  double layers = 0, experts = 0, embedding = 0;
};

// The first layers of a mixture may be dense.
Held HeldBy(const Workload& w, double layers, double dense) {
  const double h = w.hidden, mixed = layers - dense, experts = w.ExpertParameters();
  const double rest = mixed * (w.LayerParameters() - experts) + (dense > 0 ? dense * w.DenseLayerParameters() : 0);
  return {rest / w.tp, experts / w.ep * mixed, h * w.vocabulary / w.tp * (w.pp == 1 ? 2 : 1)};
}

// Of one layer and microbatch, in units of tokens x hidden, without recomputation.
double LayerActivations(const Workload& w) {
  const double f = w.experts > 0 ? double(w.expert_ffn) * (w.top_k + w.shared_experts) : w.ffn,
               matrices = w.gated ? 6 : 4;
  if (w.flash) {
    const double split = 14 + matrices * f / w.hidden;
    return w.sequence_parallel || w.tp == 1 ? split / w.tp : 10 + (split - 10) / w.tp;
  }
  const double scores = 5.0 * w.heads * w.sequence / w.hidden;
  return w.sequence_parallel ? (34 + scores) / w.tp : 10 + (24 + scores) / w.tp;
}

// What of them is kept with selective recomputation.
double Selected(const Workload& w, double all) {
  if (w.keeps.eager) return w.keeps.selective_kept * all;
  return w.flash ? all : all - 5.0 * w.heads * w.sequence / w.hidden / w.tp;
}

StageTerms StageOf(const Workload& w, int stage, double layers) {
  const bool is_last = stage == w.pp - 1;
  const Held held = HeldBy(w, layers, w.experts > 0 && stage == 0 ? std::min<double>(w.dense_layers, layers) : 0);
  const double tokens = double(w.microbatch) * w.sequence / w.cp;
  const bool has_head = is_last || (stage == 0 && w.schedule == Schedule::kDualPipe);
  return {.stage = stage,
          .layers = layers,
          .weights = held.layers + (stage == 0 || is_last ? held.embedding : 0),
          .experts = held.experts,
          .widest = (held.layers + held.experts) / std::max(1.0, layers),
          .logits = has_head ? w.keeps.logit_bytes * tokens * w.vocabulary / w.tp : 0};
}

// Of the last of interleaved stages as few as published runs needed, which are predicted less well by what its order
// holds: the memory of 64 runs within 5.6 %, not 5.1.
double UnderWay(const MemoryTerms& t, const StageTerms& stage, const Variant& v) {
  const bool is_last = stage.stage > 0 && stage.stage == static_cast<int>(t.pp) - 1;
  if (v.schedule == Schedule::k1F1B && v.chunks > 1 && is_last) return 1 + (t.pp - 1) / (t.pp * v.chunks);
  return InFlight(v, t.pp, t.microbatches, stage.stage);
}

MemoryUse StageUse(const MemoryTerms& t, const StageTerms& stage, const Variant& v) {
  MemoryUse use;
  if (t.adapts)  // frozen weights in 16 bits, and adapters of a hundredth with their optimizer
    use.states = 2.2 * (stage.weights + stage.experts) / (v.zero == 3 ? t.replicas : 1);
  else  // an expert's state is shared by those ranks alone that have it
    use.states = StateBytes(t, v, t.replicas) * stage.weights + StateBytes(t, v, t.expert_replicas) * stage.experts;
  const double kept = v.recompute == Recompute::kFull        ? t.input
                      : v.recompute == Recompute::kSelective ? t.selected
                                                             : t.all;
  const double in_flight = UnderWay(t, stage, v);
  const double again = kept < t.all ? t.all : 0;  // of the layer that is computed again
  use.activations = t.unit * ((kept * stage.layers + t.buffers) * in_flight + again + t.gathered);
  use.logits = stage.logits;
  use.workspace = v.zero == 3 ? 4 * stage.widest : t.workspace;
  use.context = kContext + kFragmentation * use.total();
  return use;
}

MemoryUse MostOf(const MemoryTerms& t, const Variant& v) {
  MemoryUse most = StageUse(t, t.stages.front(), v);
  for (size_t i = 1; i < t.stages.size(); ++i)
    if (const MemoryUse use = StageUse(t, t.stages[i], v); use.total() > most.total()) most = use;
  return most;
}

MemoryUse AsNeeded(const MemoryTerms& t, Variant& v) {
  Variant other = v;
  other.recompute = Recompute::kNone;
  MemoryUse use = MostOf(t, other);
  v.recomputed_share = 0;
  if (use.total() <= t.capacity) return use;
  other.recompute = Recompute::kFull;
  const MemoryUse all = MostOf(t, other);
  if (use.total() <= all.total()) return use;
  v.recomputed_share = std::min(1.0, (use.total() - t.capacity) / (use.total() - all.total()));
  use.activations += v.recomputed_share * (all.activations - use.activations);
  use.context += v.recomputed_share * (all.context - use.context);
  return use;
}

}  // namespace

MemoryTerms MemoryTermsOf(const Workload& w) {
  MemoryTerms t;
  for (int stage = 0; stage < w.pp; ++stage)  // of stages that are alike the first and the last
    if (stage == 0 || stage == w.pp - 1 || !w.stage_layers.empty())
      t.stages.push_back(StageOf(w, stage, std::ceil(w.StageLayers(stage))));
  t.unit = double(w.microbatch) * w.sequence / w.cp * w.hidden;
  t.all = LayerActivations(w);
  t.selected = Selected(w, t.all);
  t.input = kInput / (w.sequence_parallel ? double(w.tp) : 1);
  t.buffers = w.pp > 1 ? w.keeps.stage_buffers * t.input : 0;
  t.gathered = w.tp > 1 ? w.keeps.gathered_bytes : 0;
  t.workspace = 4 * double(w.hidden) * (w.gated ? 2 : 1) * w.ffn / w.tp;
  t.gradient_bytes = w.keeps.gradient_bytes;
  t.replicas = double(w.dp) * w.cp;
  t.expert_replicas = std::max(1.0, t.replicas / w.ep);
  t.pp = w.pp;
  t.microbatches = w.Microbatches();
  t.capacity = w.machine.memory;
  t.adapts = w.training == Training::kLora;
  return t;
}

MemoryUse UseOf(const MemoryTerms& t, Variant& v) {
  if (v.recompute == Recompute::kAsNeeded) return AsNeeded(t, v);
  v.recomputed_share = v.recompute == Recompute::kFull ? 1 : 0;
  return MostOf(t, v);
}

double RecomputedShare(const Workload& w) {
  Variant variant = VariantOf(w);
  if (w.recompute != Recompute::kAsNeeded) return w.recompute == Recompute::kFull ? 1 : 0;
  UseOf(MemoryTermsOf(w), variant);
  return variant.recomputed_share;
}

MemoryUse PredictMemory(const Workload& w) {
  Variant variant = VariantOf(w);
  return UseOf(MemoryTermsOf(w), variant);
}

}  // namespace lockstep::plan
