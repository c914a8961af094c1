#include "lockstep/plan/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/plan/memory.h"

namespace lockstep::plan {
namespace {

constexpr double kBytes = 2;                       // of an activation, a weight, a gradient
constexpr double kAdapted = .01, kAdapters = .05;  // adapters: of the parameters; of a product, their gradients
constexpr double kPicked = .4;                     // of a forward pass, computed again where an eager stack picks
constexpr double kAsyncTensor = .5;                // of what tensor parallelism shows, where it is cut into pieces

double Log2(double value) { return value > 1 ? std::log2(value) : 0; }

using Pass = LayerSeconds;  // of each direction; wait: for the host, which launches kernels one by one

Pass Sum(const Pass& a, const Pass& b) {
  return {a.gemm + b.gemm,     a.experts + b.experts, a.attention + b.attention, a.glue + b.glue,
          a.tensor + b.tensor, a.context + b.context, a.exchange + b.exchange,   a.wait + b.wait};
}

class Model {
 public:
  Model(const Workload& work, const Rates& rates)
      : w_(work), r_(rates), m_(work.machine), tokens_(double(work.microbatch) * work.sequence / work.cp) {}

  StepTerms Terms() const {
    StepTerms t;
    t.forward = Forward();
    t.backward = Backward(t.forward);
    t.both = Sum(t.forward, t.backward);
    const double products = t.forward.gemm + t.forward.experts;
    t.weight = w_.training == Training::kLora ? kAdapters * products : products;
    t.selective = w_.keeps.eager ? kPicked * t.forward.computed() : t.forward.attention;
    t.head = HeadPasses();
    TakeStages(t);
    t.microbatches = w_.Microbatches();
    t.transfer = Transfer();
    t.transfer_hidden = Hidden(r_.pipeline_hidden);
    TakeData(t);
    t.optimizer = Streamed(r_.optimizer_bytes * (w_.training == Training::kLora ? kAdapted : 1) * Local());
    t.replicas = Replicas();
    t.step = r_.step;
    t.straggle = r_.straggle * Log2(double(w_.accelerators) / m_.domain);
    return t;
  }

  double TransferBytes() const { return kBytes * tokens_ * w_.hidden / (w_.sequence_parallel ? w_.tp : 1); }
  // Gradients, and as much again of parameters or of the other half of an all-reduce.
  double DataBytes() const {
    if (Replicas() == 1 || w_.training == Training::kLora) return 0;
    return 2 * kBytes * Local() * (Replicas() - 1) / Replicas();
  }

 private:
  double Reached(double share, double m, double n, double k) const {
    return share * m / (m + r_.half_m) * n / (n + r_.half_n) * k / (k + r_.half_k);
  }
  // Of the precision of the layers.
  double Gemm(double m, double n, double k) const {
    double peak = m_.bf16, share = r_.gemm;
    if (w_.precision == Precision::kFp8) peak = m_.fp8, share = r_.gemm_fp8 * (w_.row_scales ? r_.row_scales : 1);
    if (w_.precision == Precision::kFp4) peak = m_.fp4, share = r_.gemm_fp4;
    return 2 * m * n * k / (peak * Reached(share, m, n, k));
  }
  double Streamed(double bytes) const { return bytes / (m_.bandwidth * r_.stream); }

  // Of a group of `size` ranks that lie `stride` apart: as many as fit are of one domain.
  double Rate(double size, double stride) const {
    const double within = std::max(1.0, std::floor(m_.domain / stride));
    const double scale_up = m_.scale_up * r_.scale_up;
    return size <= within ? scale_up : std::min(scale_up, m_.nic * r_.network * within);
  }

  Pass Forward() const {
    Pass pass;
    pass.gemm = w_.latent.kv_rank > 0 ? LatentProjections() : Projections();
    const double mixed = w_.experts > 0 ? 1 - double(w_.dense_layers) / w_.layers : 0;  // share of the layers
    if (mixed < 1) pass.gemm += (1 - mixed) * FeedForward(w_.ffn);
    if (mixed > 0 && w_.shared_experts > 0) pass.gemm += mixed * FeedForward(double(w_.shared_experts) * w_.expert_ffn);
    if (mixed > 0) pass.experts = mixed * Experts();
    pass.attention = Attention();
    pass.glue = Glue();
    pass.tensor = Tensor();
    pass.context = Context(pass.attention);
    pass.exchange = mixed * Exchange();
    pass.wait = Wait(pass, 1);
    return pass;
  }

  double Projections() const {
    const double h = w_.hidden, inner = double(w_.heads) * w_.head_dim, kv = double(w_.kv_heads) * w_.head_dim;
    return Gemm(tokens_, (inner + 2 * kv) / w_.tp, h) + Gemm(tokens_, h, inner / w_.tp);
  }
  // What is compressed is so on each rank of tp; what comes out of it is split.
  double LatentProjections() const {
    const LatentAttention& l = w_.latent;
    const double h = w_.hidden, heads = double(w_.heads) / w_.tp, queries = heads * w_.head_dim;
    const double down = l.q_rank + l.kv_rank + l.rope, keys = heads * (w_.head_dim - l.rope + l.value);
    const double query = Gemm(tokens_, queries, l.q_rank > 0 ? l.q_rank : h);
    return Gemm(tokens_, down, h) + query + Gemm(tokens_, keys, l.kv_rank) + Gemm(tokens_, h, heads * l.value);
  }

  double FeedForward(double width) const {
    return Gemm(tokens_, (w_.gated ? 2 : 1) * width / w_.tp, w_.hidden) + Gemm(tokens_, w_.hidden, width / w_.tp);
  }
  double Experts() const {
    const double local = double(w_.experts) / w_.ep, routed = tokens_ * w_.top_k / local, width = w_.expert_ffn;
    const double products = Gemm(routed, (w_.gated ? 2 : 1) * width, w_.hidden) + Gemm(routed, w_.hidden, width);
    return local * products / r_.expert_gemm;
  }

  // The device is done before the host has launched the next kernels; or, where each launch is waited for, idle after
  // each of them.
  double Wait(const Pass& pass, double times) const {
    if (w_.blocking_launches) return times * r_.kernels * r_.blocked;
    const double experts = w_.experts > 0 && !w_.drops_tokens ? r_.expert_kernels * w_.experts / w_.ep : 0;
    return std::max(0.0, times * (r_.kernels + experts) * r_.kernel - pass.total());
  }
  // Nothing runs beside what is waited for.
  double Hidden(double share) const { return w_.blocking_launches ? 0 : share; }

  double Attention() const {
    const double flops = 4.0 * w_.microbatch * w_.sequence * w_.sequence * w_.heads * w_.ScoreDim() / w_.tp / w_.cp;
    const double aligned = w_.head_dim % 8 == 0 ? 1 : r_.unaligned;
    const double uneven = 1 + r_.context_imbalance * (1 - 1.0 / w_.cp);
    const double masked = w_.causal ? .5 : 1;
    if (w_.flash) return uneven * flops * masked / (m_.bf16 * r_.flash * r_.attention * aligned);
    const double squares = double(w_.microbatch) * w_.heads / w_.tp * w_.sequence * w_.sequence;
    return flops / (m_.bf16 * r_.unfused * aligned) + Streamed(r_.softmax_passes * kBytes * squares);
  }

  // What lies outside of the split matrices is done by each rank of them, unless the sequence is split there.
  double Glue() const {
    const double share = w_.sequence_parallel || w_.tp == 1 ? 1.0 / w_.tp : .6 + .4 / w_.tp;
    return Streamed(r_.glue_bytes * tokens_ * w_.hidden * share);
  }

  double Tensor() const {
    if (w_.tp == 1) return 0;
    const double bytes = kBytes * tokens_ * w_.hidden, n = w_.tp;
    const double one = 2 * bytes * (n - 1) / n / Rate(n, 1) + r_.latency * Log2(n);
    return 2 * one * (1 - (w_.hides_tensor ? Hidden(r_.tensor_hidden) : 0)) * (w_.async_tensor ? kAsyncTensor : 1);
  }

  double Context(double attention) const {
    if (w_.cp == 1) return 0;
    const double bytes = 2 * kBytes * tokens_ * w_.kv_heads * w_.head_dim / w_.tp * (w_.cp - 1);
    return std::max(0.0, bytes / Rate(w_.cp, w_.tp) + r_.latency - r_.context_hidden * attention);
  }

  // Tokens go to their experts and come back; to each other domain once, for whichever of its experts they need.
  double Exchange() const {
    if (w_.experts == 0 || w_.ep == 1) return 0;
    const double n = w_.ep, bytes = kBytes * tokens_ * w_.top_k * w_.hidden * (n - 1) / n;
    const double within = std::min(n, std::max(1.0, m_.domain / double(w_.tp)));
    const double domains = n / within, needed = w_.top_k * (1 - 1 / domains);
    const double once = domains > 1 ? (domains - 1) * (1 - std::pow(1 - 1 / domains, w_.top_k)) / needed : 1;
    const double outside = bytes * (n - within) / std::max(1.0, n - 1) * std::min(1.0, once);
    const double seconds = std::max((bytes - outside) / (m_.scale_up * r_.scale_up), outside / (m_.nic * r_.network));
    return 2 * (seconds + r_.latency) * (1 - Hidden(r_.expert_hidden));
  }

  // Matrix products twice: for the input and for the weight; of adapters only the first. A fused kernel of attention
  // computes the scores once more.
  Pass Backward(const Pass& forward) const {
    const double products = w_.training == Training::kLora ? 1 + kAdapters : 2;
    Pass pass = forward;
    pass.gemm *= products;
    pass.experts *= products;
    pass.attention *= w_.flash ? 2.5 : 2;
    pass.glue *= 2;
    pass.context *= 2;
    pass.wait = 0;
    pass.wait = Wait(pass, 2);
    return pass;
  }

  // The output layer and the loss, in 16 bits, both directions.
  double Head() const {
    const double n = double(w_.vocabulary) / w_.tp;
    const double product = 2 * tokens_ * n * w_.hidden / (m_.bf16 * Reached(r_.gemm, tokens_, n, w_.hidden));
    const double directions = w_.training == Training::kLora ? 2 : 3;
    return directions * product + Streamed(12 * tokens_ * n) + r_.microbatch;
  }
  Passes HeadPasses() const {
    const double head = Head();
    if (w_.training == Training::kLora) return {head / 2, head / 2, 0};
    return {head / 3, head / 3, head / 3};
  }

  // Where layers do not divide, some stages have one more, and the last does not.
  void TakeStages(StepTerms& t) const {
    t.stages = w_.pp;
    t.layers = w_.layers;
    const std::vector<int>& listed = w_.stage_layers;
    t.last_layers = listed.empty() ? w_.layers / w_.pp : listed.back();
    t.most_layers = listed.empty() ? (w_.layers + w_.pp - 1) / w_.pp : *std::ranges::max_element(listed);
    for (size_t i = listed.size(); i > 0 && listed[i - 1] < t.most_layers; --i)
      t.layers_behind += listed[i - 1], t.stages_behind += 1;
  }

  // To the next stage, hidden or not.
  double Transfer() const {
    if (w_.pp == 1) return 0;
    const bool inside = double(w_.tp) * w_.cp * w_.dp * w_.pp <= m_.domain;
    return TransferBytes() / (inside ? m_.scale_up * r_.scale_up : m_.nic * r_.network) + r_.latency;
  }

  // What a rank holds of the layers and, of two, an embedding.
  double Local() const {
    const double h = w_.hidden;
    const double experts = w_.ExpertParameters(), all = w_.Parameters() - 2 * h * w_.vocabulary;
    const double mixed = w_.experts > 0 ? w_.layers - w_.dense_layers : 0;
    const double layers = (all - mixed * experts) / w_.tp + mixed * experts / w_.ep;
    return layers / w_.pp + h * w_.vocabulary / w_.tp;
  }
  double Replicas() const { return double(w_.dp) * w_.cp; }

  // Beside the last backward pass, where the stack can. ZeRO 3 gathers weights twice and scatters gradients once.
  void TakeData(StepTerms& t) const {
    const double size = Replicas();
    if (size == 1) return;
    const double rate = Rate(size, w_.tp);
    t.data = DataBytes() / rate;
    t.data_hidden = Hidden(r_.data_hidden);
    t.scatter = kBytes * Local() * (size - 1) / size / (rate * r_.sharded_rate);
    t.gather = 2 * t.scatter;
    if (w_.training == Training::kLora) t.scatter = 0;
    t.sharded_hidden = r_.sharded_hidden;
  }

  const Workload& w_;
  const Rates& r_;
  const Machine& m_;
  const double tokens_;  // of a microbatch, on one accelerator
};

Passes LayerPasses(const StepTerms& t, double recompute) {
  return {t.forward.total(), t.backward.total() + recompute - t.weight, t.weight};
}

double RecomputeSeconds(const StepTerms& t, const Variant& v) {
  return v.recompute == Recompute::kSelective ? t.selective : v.recomputed_share * t.forward.total();
}

// DualPipe computes a forward and a backward pass at the same time, and each hides what the other exchanges.
double Overlap(const StepTerms& t, Schedule schedule) {
  return schedule == Schedule::kDualPipe ? std::min(t.both.exchange, t.both.computed()) : 0;
}

// All stages wait for the one that takes longest; of equals the last, for it has the output layer. Of DualPipe the
// first rank and the last share that.
Passes Slowest(const StepTerms& t, const Passes& layer, Schedule schedule) {
  const double share = 1.0 / CopiesOf(schedule), seconds = layer.total();
  if (t.most_layers * seconds > t.last_layers * seconds + share * t.head.total())
    return {t.most_layers * layer.forward, t.most_layers * layer.input, t.most_layers * layer.weight};
  return {t.last_layers * layer.forward + share * t.head.forward, t.last_layers * layer.input + share * t.head.input,
          t.last_layers * layer.weight + share * t.head.weight};
}

// 1F1B, where the slowest stage is not the last: what is behind it takes D for a microbatch there and back, while it
// has so many forward passes left to do in the beginning, and backward passes in the end, as there are stages behind.
double BubbleBehind(const StepTerms& t, const Passes& layer, const Passes& others, const Passes& slowest) {
  const double behind = t.layers_behind * layer.total() + t.head.total();
  return others.total() - behind + std::max(0.0, behind - t.stages_behind * slowest.forward) +
         std::max(0.0, behind - t.stages_behind * (slowest.input + slowest.weight));
}

double Bubble(const StepTerms& t, const Passes& layer, Passes slowest, const Variant& v) {
  const double head = 1.0 / CopiesOf(v.schedule), overlap = Overlap(t, v.schedule);
  slowest.forward -= t.layers / t.stages * overlap;
  const Passes others = {t.layers * (layer.forward - overlap) + head * t.head.forward - slowest.forward,
                         t.layers * layer.input + head * t.head.input - slowest.input,
                         t.layers * layer.weight + head * t.head.weight - slowest.weight};
  const bool is_last = t.most_layers * layer.total() <= t.last_layers * layer.total() + t.head.total();
  if (v.schedule == Schedule::k1F1B && t.stages_behind > 0 && !is_last) return BubbleBehind(t, layer, others, slowest);
  return BubbleSeconds(v.schedule, static_cast<int>(t.stages), v.chunks, others, slowest);
}

// What a step shows of the communication between replicas.
double Data(const StepTerms& t, const Variant& v, double layer) {
  if (t.replicas == 1) return 0;
  const double layers = t.layers / t.stages;
  if (v.zero == 3) {  // of each microbatch, or once where a pipeline keeps what it gathered
    const double seconds = (t.stages > 1 ? 1 : t.microbatches) * (t.gather + t.scatter);
    const double hidden = v.hides_data ? t.sharded_hidden * t.microbatches * layers * layer : 0;
    return std::max(seconds - hidden, 0.0) + seconds / std::max(1.0, layers);
  }
  const double seconds = CopiesOf(v.schedule) * t.data;
  return std::max(seconds - (v.hides_data ? t.data_hidden * layers * t.backward.total() : 0), .05 * seconds);
}

}  // namespace

const char* PartName(Part part) {
  constexpr const char* kNames[kParts] = {"gemm",      "experts", "attention",       "glue",     "recompute", "head",
                                          "tensor",    "context", "expert_exchange", "pipeline", "bubble",    "data",
                                          "optimizer", "step",    "stragglers"};
  return kNames[static_cast<size_t>(part)];
}

Seconds StepTime::total() const { return {std::accumulate(seconds.begin(), seconds.end(), 0.0)}; }

StepTerms TermsOf(const Workload& workload, const Rates& rates) { return Model(workload, rates).Terms(); }

StepTime StepOf(const StepTerms& t, const Variant& v) {
  const double recompute = RecomputeSeconds(t, v), layers = t.layers / t.stages, times = t.microbatches * layers;
  const Passes layer = LayerPasses(t, recompute), slowest = Slowest(t, layer, v.schedule);
  StepTime step;
  step[Part::kGemm] = times * t.both.gemm;
  step[Part::kExperts] = times * t.both.experts;
  step[Part::kAttention] = times * t.both.attention;
  step[Part::kGlue] = times * (t.both.glue + t.both.wait);
  step[Part::kTensor] = times * t.both.tensor;
  step[Part::kContext] = times * t.both.context;
  // A rank at the end of DualPipe's pipeline has the fewest pairs.
  const double pairs = std::max(0.0, t.microbatches - 1.5 * t.stages + 1);
  step[Part::kExpertExchange] = times * t.both.exchange - pairs * layers * Overlap(t, v.schedule);
  step[Part::kRecompute] = times * recompute;
  step[Part::kHead] = t.microbatches * (slowest.total() - layers * layer.total());
  step[Part::kBubble] = Bubble(t, layer, slowest, v);
  step[Part::kPipeline] =
      2 * (t.microbatches + t.stages - 1) * v.chunks * t.transfer * (v.hides_transfers ? 1 - t.transfer_hidden : 1);
  step[Part::kData] = Data(t, v, layer.total());
  step[Part::kOptimizer] = v.zero >= 1 ? t.optimizer / t.replicas : t.optimizer;
  step[Part::kStep] = t.step;
  step[Part::kStragglers] = step.total().value * t.straggle;
  return step;
}

StepTime PredictStep(const Workload& workload, const Rates& rates) {
  Variant variant = VariantOf(workload);
  variant.recomputed_share = RecomputedShare(workload);
  return StepOf(TermsOf(workload, rates), variant);
}

StageTimes PredictStage(const Workload& w, const Rates& rates) {
  const Model model(w, rates);
  const StepTerms t = model.Terms();
  Variant variant = VariantOf(w);
  variant.recomputed_share = RecomputedShare(w);
  return {.layer = LayerPasses(t, RecomputeSeconds(t, variant)),
          .head = t.head,
          .overlap = Overlap(t, w.schedule),
          .transfer = t.transfer * (variant.hides_transfers ? 1 - t.transfer_hidden : 1),
          .data = w.zero == 3 ? 0 : CopiesOf(w.schedule) * t.data,
          .transfer_bytes = model.TransferBytes(),
          .data_bytes = CopiesOf(w.schedule) * model.DataBytes()};
}

}  // namespace lockstep::plan
