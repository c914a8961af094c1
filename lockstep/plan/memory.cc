#include "lockstep/plan/memory.h"

#include <algorithm>
#include <cmath>

#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

constexpr double kContext = 3.2e9, kFragmentation = .03;

// Bytes of weights, gradients and optimizer of each parameter that a rank holds: 16-bit weights, and the two moments
// and the master weight of Adam, which are shared from ZeRO 1 on.
double StateBytes(const Workload& w, double ranks) {
  switch (w.zero) {
    case 0:
      return 14 + w.gradient_bytes;
    case 1:
      return 2 + w.gradient_bytes + 12 / ranks;
    case 2:
      return 2 + (w.gradient_bytes + 12) / ranks;
    default:
      return 16 / ranks;
  }
}

// Parameters of the stage.
struct Held {
  double layers = 0, experts = 0, embedding = 0;
};

Held HeldBy(const Workload& w, double layers) {
  const double h = w.hidden;
  const double experts = w.experts > 0 ? (w.gated ? 3 : 2) * h * w.expert_ffn * w.experts : 0;
  const double dense = (w.LayerParameters() - experts) / w.tp;
  return {dense * layers, experts / w.ep * layers, h * w.vocabulary / w.tp * (w.pp == 1 ? 2 : 1)};
}

// Of one layer and microbatch, in units of tokens x hidden, without recomputation.
double LayerActivations(const Workload& w) {
  const double f = w.experts > 0 ? double(w.expert_ffn) * w.top_k : w.ffn, matrices = w.gated ? 6 : 4;
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
      return 2 / (w.sequence_parallel ? double(w.tp) : 1);
    case Recompute::kSelective:
      if (w.stack == Stack::kEager) return .6 * all;
      return w.flash ? all : all - 5.0 * w.heads * w.sequence / w.hidden / w.tp;
    default:
      return all;
  }
}

// An eager stack keeps the logits in both widths, with their gradients.
double LogitBytes(const Workload& w) { return w.stack == Stack::kEager ? 8 : 4; }

// A stage of so many layers that has so many microbatches under way.
MemoryUse StageUse(const Workload& w, double layers, double in_flight, bool has_head) {
  const Held held = HeldBy(w, layers);
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
  if (has_head) use.logits = LogitBytes(w) * tokens * w.vocabulary / w.tp;
  use.workspace = w.zero == 3 ? 4 * (held.layers + held.experts) / std::max(1.0, layers)
                              : 4 * double(w.hidden) * (w.gated ? 2 : 1) * w.ffn / w.tp;
  use.context = kContext + kFragmentation * use.total();
  return use;
}

}  // namespace

namespace {

// Weights and gradients of the second stage that a rank of DualPipe has; the optimizer shares its part over both.
double SecondCopy(const Workload& w, double layers) {
  const Held held = HeldBy(w, layers);
  return CopiesOf(w.schedule) == 1 ? 0 : (2 + w.gradient_bytes) * (held.layers + held.experts + held.embedding);
}

MemoryUse OtherScheduleUse(const Workload& w) {
  MemoryUse most;
  for (int stage = 0; stage < w.pp; ++stage) {
    const bool has_head = stage == w.pp - 1 || (stage == 0 && w.schedule == Schedule::kDualPipe);
    MemoryUse use = StageUse(w, std::ceil(w.StageLayers(stage)), InFlight(w, stage), has_head);
    use.states += SecondCopy(w, std::ceil(w.StageLayers(stage)));
    if (use.total() > most.total()) most = use;
  }
  return most;
}

MemoryUse Use(const Workload& w) {
  const double layers = std::ceil(double(w.layers) / w.pp);
  if (w.pp == 1) return StageUse(w, layers, 1, true);
  if (w.schedule != Schedule::k1F1B || !w.stage_layers.empty()) return OtherScheduleUse(w);
  const double interleaved = w.chunks > 1 ? 1 + (w.pp - 1.0) / (double(w.pp) * w.chunks) : 1;
  const MemoryUse first = StageUse(w, layers, std::min<double>(w.Microbatches(), w.pp * interleaved), false);
  const MemoryUse last = StageUse(w, layers, interleaved, true);
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
