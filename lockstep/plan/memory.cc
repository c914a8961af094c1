#include "lockstep/plan/memory.h"

#include <algorithm>
#include <cmath>

#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

constexpr double kContext = 3.2e9, kFragmentation = .03;
constexpr double kInput = 2;     // bytes of a layer's input, per token and hidden unit
constexpr double kAdapter = 20;  // bytes of a parameter of an adapter, optimizer and all
// Layers of which what the others have on the host is on the device: one in use, one under way.
constexpr double kResident = 2;

// Bytes of weights, gradients and optimizer of each parameter that a rank holds: 16-bit weights, and the two moments
// and the master weight of Adam, which are shared from ZeRO 1 on. A pipeline keeps whole between its microbatches what
// ZeRO 2 and 3 share further, or it would gather and scatter that each time; under ZeRO 3 beside its shares.
double StateBytes(const MemoryTerms& t, const Variant& v, double ranks) {
  const double gradient = t.gradient_bytes, whole = CopiesOf(v.schedule) * (2 + gradient);
  const double adam = v.offload.optimizer ? 0 : t.adam_bytes;
  switch (v.zero) {
    case 0:
      return whole + adam;
    case 1:
      return whole + adam / ranks;
    case 2:
      return t.pp > 1 ? whole + adam / ranks : 2 + (gradient + adam) / ranks;
    default:
      return (4 + adam) / ranks + (t.pp > 1 && ranks > 1 ? whole : 0);
  }
}
// Of each frozen one: its weight.
double FrozenBytes(const MemoryTerms& t, const Variant& v, double ranks) {
  const double whole = CopiesOf(v.schedule) * 2.0;
  if (v.zero < 3) return whole;
  return 2 / ranks + (t.pp > 1 && ranks > 1 ? whole : 0);
}
// Of the host: Adam's state, and the gradients that it takes.
double HostBytes(const MemoryTerms& t, const Variant& v, double ranks) {
  const double trained = t.adapts ? kAdapted : 1;
  return v.offload.optimizer ? trained * (t.adam_bytes + t.gradient_bytes) / (v.zero > 0 ? ranks : 1) : 0;
}
// Of each that is trained; or that has adapters, a hundredth of it with their optimizer, which are trained in its
// place.
double TrainedBytes(const MemoryTerms& t, const Variant& v, double ranks) {
  if (!t.adapts) return StateBytes(t, v, ranks);
  return FrozenBytes(t, v, ranks) + kAdapter * kAdapted / (v.zero == 3 ? ranks : 1);
}
// The layers' weights and gradients on the host, but of those in use; the latter are there already, for Adam.
void LeaveLayers(const MemoryTerms& t, const StageTerms& stage, const Variant& v, MemoryUse& use) {
  const double share = std::max(0.0, 1 - kResident / stage.layers), rest = share * (stage.weights - stage.embedding);
  const double experts = share * stage.experts;
  use.states -= TrainedBytes(t, v, t.replicas) * rest + TrainedBytes(t, v, t.expert_replicas) * experts;
  use.host += 2 * (rest / t.replicas + experts / t.expert_replicas);
}

// Of so many layers of a stage, the first `of` those that it has, those that have experts.
double MixedIn(const Workload& w, int stage, double layers, double of) {
  if (w.experts == 0) return 0;
  const double first = stage < w.pp - 1 ? w.FirstLayer(stage) : w.layers - of;
  const int below = static_cast<int>(first), end = std::min(w.layers, below + static_cast<int>(layers));
  return w.MixedBelow(end) - w.MixedBelow(below);
}

// Parameters of the stage.
struct Held {
  double layers = 0, experts = 0, embedding = 0;
};

Held HeldBy(const Workload& w, double layers, double mixed) {
  const double h = w.hidden, dense = layers - mixed, experts = w.ExpertParameters();
  const double rest = mixed * (w.LayerParameters() - experts) + (dense > 0 ? dense * w.DenseLayerParameters() : 0);
  return {rest / w.tp, experts / w.ep * mixed, h * w.vocabulary / w.tp * w.EndEmbeddings()};
}

// Columns of what attention keeps, on all ranks of tp: queries, keys, values and the output. Where positions turn
// queries and keys, as in models with gated MLPs, these are copies, and the values keep alive what came out of one
// product with them, on each rank all of it where that is gathered. Of the latent kind also what its own norms take and
// give.
double AttentionColumns(const Workload& w) {
  const double heads = w.heads;
  if (const double gathered = w.GatheredColumns(); gathered > 0)
    return w.tp * gathered + w.head_dim * (heads + (w.gated ? heads + w.tp : 0));
  if (w.latent.kv_rank == 0) return (w.gated ? 3.0 : 2.0) * w.head_dim * (heads + w.kv_heads);
  const double turned = 2.0 * w.head_dim, beside_values = w.head_dim - w.latent.rope, values = 2.0 * w.latent.value_dim;
  return heads * (turned + beside_values + values) + 2.0 * (w.latent.q_rank + w.latent.kv_rank) + w.latent.rope;
}

// Bytes of a value that only a product of matrices needs again: as that has it. An eager stack keeps what it was made
// from.
double ProductBytes(const Workload& w) {
  if (w.keeps.eager || w.precision == Precision::kBf16) return kInput;
  return w.precision == Precision::kFp8 ? 1 : .5;
}

// Of one layer in the mean and microbatch, in units of tokens x hidden, without recomputation.
double LayerActivations(const Workload& w) {
  if (w.flash) {
    const double product = ProductBytes(w), norms = 2 * (kInput + product);  // what they take, and give to products
    // An MLP's: what it is activated from, gated two of them; what comes of it.
    const double per_width = ((w.gated ? 2 : 1) * kInput + product) / w.hidden;
    // Of a token's experts: its copy for each, and what they return, which is weighed then; gathered, the latter is on
    // each rank of tp.
    const double copies = product * w.top_k, results = kInput * w.top_k, gathered = w.gathers_routed ? results : 0;
    const double each = per_width * w.expert_ffn * w.top_k + copies + results;
    const double mixed = w.MixedShare(), routed = mixed * (each / w.TokenShares() + gathered);
    const double width = mixed * w.expert_ffn * w.shared_experts + (1 - mixed) * w.ffn;
    // Attention needs its own output, too.
    const double output = product < kInput ? product * w.heads * w.OutputDim() : 0;
    const double split = (kInput * AttentionColumns(w) + output) / w.hidden + per_width * width;
    return routed + split / w.tp + (w.sequence_parallel ? norms / w.tp : norms);
  }
  // Of queries, keys and values that are gathered, those of the other ranks too.
  const double gathered = kInput * w.GatheredColumns() * (w.tp - 1) / w.hidden;
  const double scores = 5.0 * w.heads * w.sequence / w.hidden, all = scores + gathered;
  return w.sequence_parallel ? (34 + all) / w.tp : 10 + (24 + all) / w.tp;
}

// What of them is kept with selective recomputation.
double Selected(const Workload& w, double all) {
  if (w.keeps.eager) return w.keeps.selective_kept * all;
  return w.flash ? all : all - 5.0 * w.heads * w.sequence / w.hidden / w.tp;
}

StageTerms StageOf(const Workload& w, int stage, double layers, double frozen) {
  const bool is_last = stage == w.pp - 1;
  const Held held = HeldBy(w, layers, MixedIn(w, stage, layers, layers));
  const Held cold = HeldBy(w, frozen, MixedIn(w, stage, frozen, layers));
  const double embedding = stage == 0 || is_last ? held.embedding : 0;
  // With the output layer beside it, that is the half.
  const double cold_embedding = w.frozen.embedding && stage == 0 ? embedding / w.EndEmbeddings() : 0;
  const double tokens = double(w.microbatch) * w.sequence / w.cp;
  const bool has_head = is_last || (stage == 0 && w.schedule == Schedule::kDualPipe);
  return {.stage = stage,
          .layers = layers,
          .active = layers - (w.frozen.embedding ? frozen : 0),
          .weights = held.layers - cold.layers + embedding - cold_embedding,
          .experts = held.experts - cold.experts,
          .frozen = cold.layers + cold_embedding,
          .frozen_experts = cold.experts,
          .widest = (held.layers + held.experts) / std::max(1.0, layers),
          .embedding = embedding - cold_embedding,
          .logits = has_head ? w.keeps.logit_bytes * tokens * w.vocabulary / w.tp : 0};
}

// Of the last of interleaved stages as few as published runs needed, which are predicted less well by what its order
// holds: the memory of 64 runs within 5.6 %, not 5.1.
double UnderWay(const MemoryTerms& t, const StageTerms& stage, const Variant& v) {
  const bool is_last = stage.stage > 0 && stage.stage == static_cast<int>(t.pp) - 1;
  if (v.schedule == Schedule::k1F1B && v.chunks > 1 && is_last) return 1 + (t.pp - 1) / (t.pp * v.chunks);
  return InFlight(v, t.pp, t.microbatches, stage.stage);
}

void TakeActivations(const MemoryTerms& t, const StageTerms& stage, const Variant& v, MemoryUse& use) {
  const double again = RecomputedOf(v, stage.active), in_flight = UnderWay(t, stage, v);
  const double each = v.recompute == Recompute::kSelective ? t.selected : t.all;
  const double kept = t.input * again + each * (stage.active - again);
  const double anew = again > 0 || each < t.all ? t.all : 0;  // of the layer that is computed again
  double here = kept * in_flight;
  if (v.offload.activations) {
    here = std::min(here, kResident * (again < stage.active ? each : t.input));
    use.host = t.unit * (kept * in_flight - here);
  }
  use.activations = t.unit * (here + t.buffers * in_flight + anew + t.gathered);
}

MemoryUse StageUse(const MemoryTerms& t, const StageTerms& stage, const Variant& v) {
  MemoryUse use;
  // An expert's state is shared by those ranks alone that have it.
  use.states = TrainedBytes(t, v, t.replicas) * stage.weights + TrainedBytes(t, v, t.expert_replicas) * stage.experts;
  use.states += FrozenBytes(t, v, t.replicas) * stage.frozen;
  use.states += FrozenBytes(t, v, t.expert_replicas) * stage.frozen_experts;
  TakeActivations(t, stage, v, use);
  use.host += HostBytes(t, v, t.replicas) * stage.weights + HostBytes(t, v, t.expert_replicas) * stage.experts;
  if (v.offload.weights) LeaveLayers(t, stage, v, use);
  use.logits = stage.logits;
  use.workspace = v.zero == 3 ? 4 * stage.widest : t.workspace;
  use.context = kContext + kFragmentation * use.total();
  return use;
}

MemoryUse MostOf(const MemoryTerms& t, const Variant& v) {
  MemoryUse most = StageUse(t, t.stages.front(), v);
  double host = most.host;
  for (size_t i = 1; i < t.stages.size(); ++i) {
    const MemoryUse use = StageUse(t, t.stages[i], v);
    host = std::max(host, use.host);
    if (use.total() > most.total()) most = use;
  }
  most.host = host;
  return most;
}

// Computing a layer again takes room of its own, so the first saves less than each further one.
MemoryUse AsNeeded(const MemoryTerms& t, Variant& v) {
  const auto fits = [&](const MemoryUse& use) { return use.total() <= t.capacity && use.host <= t.host_capacity; };
  v.recomputed_layers = 0;
  const MemoryUse none = MostOf(t, v);
  if (fits(none)) return none;
  double most = 0, fewest = v.chunks;
  for (const StageTerms& stage : t.stages) {
    most = std::max(most, stage.active);
    v.recomputed_layers = 1;
    const double one = StageUse(t, stage, v).total();
    v.recomputed_layers = 2;
    const double saved = one - StageUse(t, stage, v).total();
    if (one > t.capacity && saved > 0) fewest = std::max(fewest, 1 + std::floor((one - t.capacity) / saved));
  }
  const int last = static_cast<int>(std::ceil(most));
  v.recomputed_layers = static_cast<int>(std::min<double>(last, std::floor(fewest / v.chunks) * v.chunks));
  MemoryUse use = MostOf(t, v);
  while (!fits(use) && v.recomputed_layers < last) {
    v.recomputed_layers += v.chunks;
    use = MostOf(t, v);
  }
  if (fits(use) || use.total() < none.total()) return use;
  v.recomputed_layers = 0;  // of what fits neither way, that which needs less
  return none;
}

struct KeptPerUnit {
  double unit = 0, all = 0, selected = 0, input = 0;
};
KeptPerUnit KeptOf(const Workload& w) {
  const double all = LayerActivations(w);
  return {double(w.microbatch) * w.sequence / w.cp * w.hidden, all, Selected(w, all),
          kInput / (w.sequence_parallel ? double(w.tp) : 1)};
}

}  // namespace

// Of stages in a row that are alike the first has the most microbatches under way, and the last the output layer; those
// between them may have more layers with experts.
void TakeStages(const Workload& w, MemoryTerms& t) {
  t.stages.clear();
  const auto add = [&](int stage, double layers, double frozen) {
    t.stages.push_back(StageOf(w, stage, std::ceil(layers), std::ceil(frozen)));
  };
  const auto add_run = [&](const StageRun& run) {
    add(run.first, run.layers, run.frozen);
    const double layers = std::ceil(run.layers);
    double most = MixedIn(w, run.first, layers, layers);
    const int end =
        w.MixedLayers() < w.layers ? std::min(run.first + run.count, w.pp - 1) : 0;  // else all have as many
    for (int stage = run.first + 1; stage < end; ++stage) {
      const double mixed = MixedIn(w, stage, layers, layers);
      if (mixed > most) add(stage, run.layers, run.frozen);
      most = std::max(most, mixed);
    }
    if (run.first + run.count == w.pp && run.count > 1) add(w.pp - 1, run.layers, run.frozen);
  };
  if (w.AllStagesAlike()) return add_run({.first = 0, .count = w.pp, .layers = w.StageLayers(0)});
  for (const StageRun& run : w.StageRuns()) add_run(run);
}

MemoryTerms MemoryTermsOf(const Workload& w) {
  MemoryTerms t;
  TakeStages(w, t);
  const KeptPerUnit kept = KeptOf(w);
  t.unit = kept.unit, t.all = kept.all, t.selected = kept.selected, t.input = kept.input;
  t.buffers = w.pp > 1 ? w.keeps.stage_buffers * t.input : 0;
  t.gathered = w.tp > 1 ? w.keeps.gathered_bytes : 0;
  t.workspace = 4 * double(w.hidden) * (w.gated ? 2 : 1) * w.ffn / w.tp;
  t.gradient_bytes = w.keeps.gradient_bytes, t.adam_bytes = w.keeps.adam_bytes;
  t.replicas = double(w.ShardRanks());
  t.expert_replicas = std::max(1.0, t.replicas * w.TokenShares() / w.ep);
  t.pp = w.pp;
  t.microbatches = w.Microbatches();
  t.capacity = w.machine.memory;
  t.host_capacity = w.machine.host_memory;
  t.adapts = w.training == Training::kLora;
  return t;
}

MemoryUse UseOf(const MemoryTerms& t, Variant& v) {
  if (v.recompute == Recompute::kAsNeeded) return AsNeeded(t, v);
  return MostOf(t, v);
}

int RecomputedLayers(const Workload& w) {
  Variant variant = VariantOf(w);
  UseOf(MemoryTermsOf(w), variant);
  return static_cast<int>(std::ceil(RecomputedOf(variant, std::ceil(double(w.layers) / w.pp))));
}

KeptBytes KeptBytesOf(const Workload& w) {
  const KeptPerUnit kept = KeptOf(w);
  return {kept.unit * kept.all, kept.unit * kept.selected, kept.unit * kept.input};
}

MemoryUse PredictMemory(const Workload& w) {
  Variant variant = VariantOf(w);
  return UseOf(MemoryTermsOf(w), variant);
}

}  // namespace lockstep::plan
