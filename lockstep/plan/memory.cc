#include "lockstep/plan/memory.h"

#include <algorithm>
#include <cmath>

namespace lockstep::plan {
namespace {

constexpr double kContext = 3.2e9, kFragmentation = .03;
constexpr double kInput = 2;  // bytes of a layer's input, per token and hidden unit

// Bytes of weights, gradients and optimizer of each parameter that a rank holds: 16-bit weights, and the two moments
// and the master weight of Adam, which are shared from ZeRO 1 on. A pipeline with ZeRO 3 keeps weights and gradients
// whole between its microbatches, or it would gather and scatter them each time.
double StateBytes(const Workload& w, double ranks) {
  switch (w.zero) {
    case 0:
      return 14 + w.keeps.gradient_bytes;
    case 1:
      return 2 + w.keeps.gradient_bytes + 12 / ranks;
    case 2:
      return 2 + (w.keeps.gradient_bytes + 12) / ranks;
    default:
      return 16 / ranks + (w.pp > 1 && ranks > 1 ? 2 + w.keeps.gradient_bytes : 0);
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

// Of what one microbatch leaves behind in a layer, how much is kept until its backward pass.
double Kept(const Workload& w, double all) {
  switch (w.recompute) {
    case Recompute::kFull:
      return kInput / (w.sequence_parallel ? double(w.tp) : 1);
    case Recompute::kSelective:
      if (w.keeps.eager) return w.keeps.selective_kept * all;
      return w.flash ? all : all - 5.0 * w.heads * w.sequence / w.hidden / w.tp;
    default:
      return all;
  }
}

// A stage that has so many microbatches under way.
MemoryUse StageUse(const Workload& w, double in_flight, bool has_head) {
  const double layers = std::ceil(double(w.layers) / w.pp);
  const bool is_first = w.pp == 1 || !has_head;
  const Held held = HeldBy(w, layers, w.experts > 0 && is_first ? std::min<double>(w.dense_layers, layers) : 0);
  const double tokens = double(w.microbatch) * w.sequence / w.cp, unit = tokens * w.hidden;
  const double all = LayerActivations(w), kept = Kept(w, all);
  MemoryUse use;
  const double ranks = double(w.dp) * w.cp;
  if (w.training == Training::kLora) {  // frozen weights in 16 bits, and adapters of a hundredth with their optimizer
    use.states = 2.2 * (held.layers + held.experts + held.embedding) / (w.zero == 3 ? ranks : 1);
  } else {  // an expert's state is shared by those ranks alone that have it
    use.states = StateBytes(w, ranks) * (held.layers + held.embedding) +
                 StateBytes(w, std::max(1.0, ranks / w.ep)) * held.experts;
  }
  use.activations = unit * kept * layers * in_flight;
  if (kept < all) use.activations += unit * all;  // of the layer that is computed again
  if (w.pp > 1) use.activations += w.keeps.stage_buffers * kInput * unit / (w.sequence_parallel ? w.tp : 1) * in_flight;
  if (w.tp > 1) use.activations += w.keeps.gathered_bytes * unit;
  if (has_head) use.logits = w.keeps.logit_bytes * tokens * w.vocabulary / w.tp;
  use.workspace = w.zero == 3 ? 4 * (held.layers + held.experts) / std::max(1.0, layers)
                              : 4 * double(w.hidden) * (w.gated ? 2 : 1) * w.ffn / w.tp;
  use.context = kContext + kFragmentation * use.total();
  return use;
}

}  // namespace

namespace {

MemoryUse Use(const Workload& w) {
  if (w.pp == 1) return StageUse(w, 1, true);
  const double interleaved = w.chunks > 1 ? 1 + (w.pp - 1.0) / (double(w.pp) * w.chunks) : 1;
  const MemoryUse first = StageUse(w, std::min<double>(w.Microbatches(), w.pp * interleaved), false);
  const MemoryUse last = StageUse(w, interleaved, true);
  return first.total() >= last.total() ? first : last;
}

MemoryUse As(Workload w, Recompute recompute) {
  w.recompute = recompute;
  return Use(w);
}

}  // namespace

double RecomputedShare(const Workload& w) {
  if (w.recompute != Recompute::kAsNeeded) return w.recompute == Recompute::kFull ? 1 : 0;
  const double none = As(w, Recompute::kNone).total(), all = As(w, Recompute::kFull).total();
  if (none <= w.machine.memory || none <= all) return 0;
  return std::min(1.0, (none - w.machine.memory) / (none - all));
}

MemoryUse PredictMemory(const Workload& w) {
  if (w.recompute != Recompute::kAsNeeded) return Use(w);
  const double share = RecomputedShare(w);
  MemoryUse none = As(w, Recompute::kNone);
  const MemoryUse all = As(w, Recompute::kFull);
  none.activations += share * (all.activations - none.activations);
  none.context += share * (all.context - none.context);
  return none;
}

}  // namespace lockstep::plan
