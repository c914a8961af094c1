#include "lockstep/plan/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/plan/memory.h"

namespace lockstep::plan {
namespace {

constexpr double kBytes = 2;          // of an activation, a weight, a gradient
constexpr double kMemoryShare = .85;  // of the bandwidth, that streaming kernels reach
// Of a layer, forward.
constexpr double kKernelsUnfused = 40, kKernelsFused = 16, kKernelsEager = 25;

double Log2(double value) { return value > 1 ? std::log2(value) : 0; }

// Seconds of each direction of one layer, for one microbatch on one accelerator.
struct Pass {
  double gemm = 0, experts = 0, attention = 0, glue = 0, tensor = 0, context = 0, exchange = 0;
  double computed() const { return gemm + experts + attention + glue; }
  double total() const { return computed() + tensor + context + exchange; }
};

class Model {
 public:
  Model(const Workload& work, const Rates& rates)
      : w_(work), r_(rates), m_(work.machine), tokens_(double(work.microbatch) * work.sequence / work.cp) {}

  StepTime Step() const {
    const Pass forward = Forward(), backward = Backward(forward);
    const double recompute = Recomputed(forward), head = Head(), batches = w_.Microbatches();
    const double layer = forward.total() + backward.total() + recompute;
    // All other stages wait for the slowest.
    const int slowest = Slowest(layer, head);
    const double layers = w_.StageLayers(slowest), times = batches * layers;
    StepTime step;
    step[Part::kGemm] = times * (forward.gemm + backward.gemm);
    step[Part::kExperts] = times * (forward.experts + backward.experts);
    step[Part::kAttention] = times * (forward.attention + backward.attention);
    step[Part::kGlue] = times * (forward.glue + backward.glue);
    step[Part::kTensor] = times * (forward.tensor + backward.tensor);
    step[Part::kContext] = times * (forward.context + backward.context);
    step[Part::kExpertExchange] =
        times * (forward.exchange + backward.exchange) - Pairs(batches) * layers * Overlap(forward, backward);
    step[Part::kRecompute] = times * recompute;
    step[Part::kHead] = slowest == w_.pp - 1 ? batches * head / CopiesOf(w_.schedule) : 0;
    step[Part::kBubble] = Bubble(slowest, forward, backward, recompute, head);
    step[Part::kPipeline] = Pipeline(batches);
    step[Part::kData] = Data(batches, layers, layer, backward.total());
    step[Part::kOptimizer] = r_.optimizer_bytes * Updated() / (m_.bandwidth * kMemoryShare);
    step[Part::kStep] = r_.step;
    step[Part::kStragglers] = step.total().value * r_.straggle * Log2(double(w_.accelerators) / m_.domain);
    return step;
  }

  StageTimes Stage() const {
    const Pass forward = Forward(), backward = Backward(forward);
    return {.layer = LayerPasses(forward, backward, Recomputed(forward)),
            .head = HeadPasses(Head()),
            .overlap = Overlap(forward, backward),
            .transfer = Transfer(),
            .data = w_.zero == 3 ? 0 : DataSeconds(),
            .transfer_bytes = TransferBytes(),
            .data_bytes = DataBytes()};
  }

 private:
  double Reached(double share, double m, double n, double k) const {
    return share * m / (m + r_.half_m) * n / (n + r_.half_n) * k / (k + r_.half_k);
  }
  // Of the precision of the layers.
  double Gemm(double m, double n, double k) const {
    double peak = m_.bf16, share = r_.gemm;
    if (w_.precision == Precision::kFp8) peak = m_.fp8, share = r_.gemm_fp8;
    if (w_.precision == Precision::kFp4) peak = m_.fp4, share = r_.gemm_fp4;
    return 2 * m * n * k / (peak * Reached(share, m, n, k));
  }
  double Streamed(double bytes) const { return bytes / (m_.bandwidth * kMemoryShare); }

  // Of a group of `size` ranks that lie `stride` apart: as many as fit are of one domain.
  double Rate(double size, double stride) const {
    const double within = std::max(1.0, std::floor(m_.domain / stride));
    const double scale_up = m_.scale_up * r_.scale_up;
    return size <= within ? scale_up : std::min(scale_up, m_.nic * r_.network * within);
  }

  Pass Forward() const {
    Pass pass;
    const double h = w_.hidden, inner = double(w_.heads) * w_.head_dim, kv = double(w_.kv_heads) * w_.head_dim;
    const double matrices = w_.gated ? 2 : 1;
    pass.gemm = Gemm(tokens_, (inner + 2 * kv) / w_.tp, h) + Gemm(tokens_, h, inner / w_.tp);
    if (w_.experts > 0) {
      const double local = double(w_.experts) / w_.ep, routed = tokens_ * w_.top_k / local;
      pass.experts =
          local * (Gemm(routed, matrices * w_.expert_ffn, h) + Gemm(routed, h, w_.expert_ffn)) / r_.expert_gemm;
    } else {
      pass.gemm += Gemm(tokens_, matrices * w_.ffn / w_.tp, h) + Gemm(tokens_, h, double(w_.ffn) / w_.tp);
    }
    pass.attention = Attention();
    const double kernels = w_.stack == Stack::kUnfused ? kKernelsUnfused
                           : w_.stack == Stack::kFused ? kKernelsFused
                                                       : kKernelsEager;
    pass.glue = std::max(Glue(), kernels * r_.kernel - pass.gemm - pass.experts - pass.attention);
    pass.tensor = Tensor();
    pass.context = Context(pass.attention);
    pass.exchange = Exchange();
    return pass;
  }

  double Attention() const {
    const double flops = 4.0 * w_.microbatch * w_.sequence * w_.sequence * w_.heads * w_.head_dim / w_.tp / w_.cp;
    const double aligned = w_.head_dim % 8 == 0 ? 1 : r_.unaligned;
    if (w_.flash) return flops / 2 / (m_.bf16 * r_.flash * aligned);  // causal
    const double squares = double(w_.microbatch) * w_.heads / w_.tp * w_.sequence * w_.sequence;
    return flops / (m_.bf16 * r_.unfused * aligned) + Streamed(r_.softmax_passes * kBytes * squares);
  }

  double Glue() const {
    const double bytes = w_.stack == Stack::kUnfused ? r_.unfused_bytes
                         : w_.stack == Stack::kFused ? r_.fused_bytes
                                                     : r_.eager_bytes;
    // What lies outside of the split matrices is done by each rank of them, unless the sequence is split there.
    const double share = w_.sequence_parallel || w_.tp == 1 ? 1.0 / w_.tp : .6 + .4 / w_.tp;
    return Streamed(bytes * tokens_ * w_.hidden * share);
  }

  double Tensor() const {
    if (w_.tp == 1) return 0;
    const double bytes = kBytes * tokens_ * w_.hidden, n = w_.tp;
    const double one = 2 * bytes * (n - 1) / n / Rate(n, 1) + r_.latency * Log2(n);
    return 2 * one * (1 - r_.tensor_hidden);
  }

  double Context(double attention) const {
    if (w_.cp == 1) return 0;
    const double bytes = 2 * kBytes * tokens_ * w_.kv_heads * w_.head_dim / w_.tp * (w_.cp - 1);
    return std::max(0.0, bytes / Rate(w_.cp, w_.tp) + r_.latency - r_.context_hidden * attention);
  }

  // Tokens go to their experts and come back.
  double Exchange() const {
    if (w_.experts == 0 || w_.ep == 1) return 0;
    const double n = w_.ep, bytes = kBytes * tokens_ * w_.top_k * w_.hidden * (n - 1) / n;
    const double within = std::min(n, std::max(1.0, m_.domain / double(w_.tp)));
    const double outside = bytes * (n - within) / std::max(1.0, n - 1);
    const double seconds = std::max((bytes - outside) / (m_.scale_up * r_.scale_up), outside / (m_.nic * r_.network));
    return 2 * (seconds + r_.latency) * (1 - r_.expert_hidden);
  }

  // Matrix products twice: for the input and for the weight; of adapters only the first. A fused kernel of attention
  // computes the scores once more.
  Pass Backward(const Pass& forward) const {
    const double products = w_.training == Training::kLora ? 1.05 : 2;
    Pass pass = forward;
    pass.gemm *= products;
    pass.experts *= products;
    pass.attention *= w_.flash ? 2.5 : 2;
    pass.glue *= 2;
    pass.context *= 2;
    return pass;
  }

  double Recomputed(const Pass& forward) const {
    switch (w_.recompute) {
      case Recompute::kFull:
      case Recompute::kAsNeeded:
        return RecomputedShare(w_) * forward.total();
      case Recompute::kSelective:
        return w_.stack == Stack::kEager ? .4 * forward.computed() : forward.attention;
      default:
        return 0;
    }
  }

  // The output layer and the loss, in 16 bits, both directions.
  double Head() const {
    const double n = double(w_.vocabulary) / w_.tp;
    const double product = 2 * tokens_ * n * w_.hidden / (m_.bf16 * Reached(r_.gemm, tokens_, n, w_.hidden));
    const double directions = w_.training == Training::kLora ? 2 : 3;
    return directions * product + Streamed(12 * tokens_ * n);
  }

  // Of equals the last, for it has the output layer.
  int Slowest(double layer, double head) const {
    const int last = w_.pp - 1;
    if (w_.stage_layers.empty()) return last;
    const int most = static_cast<int>(std::ranges::max_element(w_.stage_layers) - w_.stage_layers.begin());
    return w_.StageLayers(most) * layer > w_.StageLayers(last) * layer + head ? most : last;
  }

  Passes LayerPasses(const Pass& forward, const Pass& backward, double recompute) const {
    const double products = forward.gemm + forward.experts;
    const double weight = w_.training == Training::kLora ? .05 * products : products;
    return {forward.total(), backward.total() + recompute - weight, weight};
  }
  Passes HeadPasses(double head) const {
    if (w_.training == Training::kLora) return {head / 2, head / 2, 0};
    return {head / 3, head / 3, head / 3};
  }

  double Bubble(int slowest, const Pass& forward, const Pass& backward, double recompute, double head) const {
    const Passes layer = LayerPasses(forward, backward, recompute);
    const Passes output = slowest == w_.pp - 1 ? Passes{} : HeadPasses(head);
    const double layers = w_.layers - w_.StageLayers(slowest);
    return BubbleSeconds(w_.schedule, w_.pp, w_.chunks,
                         {layers * (layer.forward - Overlap(forward, backward)) + output.forward,
                          layers * layer.input + output.input, layers * layer.weight + output.weight},
                         w_.StageLayers(slowest) * layer.weight +
                             (slowest == w_.pp - 1 ? HeadPasses(head).weight / CopiesOf(w_.schedule) : 0));
  }

  // DualPipe computes a forward and a backward pass at the same time, and each hides what the other exchanges.
  double Overlap(const Pass& forward, const Pass& backward) const {
    if (w_.schedule != Schedule::kDualPipe) return 0;
    return std::min(forward.exchange + backward.exchange, forward.computed() + backward.computed());
  }
  // Of a rank at the end of the pipeline, which has the fewest.
  double Pairs(double batches) const { return std::max(0.0, batches - 1.5 * w_.pp + 1); }

  double TransferBytes() const { return kBytes * tokens_ * w_.hidden / (w_.sequence_parallel ? w_.tp : 1); }
  // To the next stage, what of it is not hidden.
  double Transfer() const {
    if (w_.pp == 1) return 0;
    const bool inside = double(w_.tp) * w_.cp * w_.dp * w_.pp <= m_.domain;
    const double rate = inside ? m_.scale_up * r_.scale_up : m_.nic * r_.network;
    return (TransferBytes() / rate + r_.latency) * (1 - r_.pipeline_hidden);
  }
  double Pipeline(double batches) const { return 2 * (batches + w_.pp - 1) * w_.chunks * Transfer(); }

  // What a rank holds of the layers and, of two, an embedding.
  double Local() const {
    const double h = w_.hidden;
    double layer = w_.LayerParameters();
    if (w_.experts > 0) {
      const double all = (w_.gated ? 3 : 2) * h * w_.expert_ffn * w_.experts;
      layer = (layer - all) / w_.tp + all / w_.ep;
    } else {
      layer /= w_.tp;
    }
    return layer * w_.layers / w_.pp + h * w_.vocabulary / w_.tp;
  }
  double Updated() const {
    const double trained = w_.training == Training::kLora ? .01 * Local() : Local();
    return w_.zero >= 1 ? trained / (double(w_.dp) * w_.cp) : trained;
  }

  // Gradients, and as much of parameters or of the other half of an all-reduce.
  double DataBytes() const {
    const double size = double(w_.dp) * w_.cp;
    if (size == 1 || w_.training == Training::kLora) return 0;
    return CopiesOf(w_.schedule) * 2 * kBytes * Local() * (size - 1) / size;
  }
  double DataSeconds() const { return DataBytes() / Rate(double(w_.dp) * w_.cp, w_.tp); }

  double Data(double batches, double layers, double layer, double backward) const {
    const double size = double(w_.dp) * w_.cp;
    if (size == 1) return 0;
    const double rate = Rate(size, w_.tp), share = (size - 1) / size;
    if (w_.zero == 3) {  // gathered twice and scattered once, of each microbatch
      const double trained = w_.training == Training::kLora ? 0 : 1;
      const double seconds = batches * (2 + trained) * kBytes * Local() * share / rate;
      const double computed = batches * layers * layer;
      const double hidden = w_.stack == Stack::kUnfused ? 0 : r_.sharded_hidden * computed;
      return std::max(seconds - hidden, 0.0) + seconds / std::max(1.0, layers);
    }
    // Beside the last backward pass where the stack can.
    const double seconds = DataSeconds();
    const double hidden = w_.stack == Stack::kUnfused ? 0 : r_.data_hidden * layers * backward;
    return std::max(seconds - hidden, .05 * seconds);
  }

  const Workload& w_;
  const Rates& r_;
  const Machine& m_;
  const double tokens_;  // of a microbatch, on one accelerator
};

}  // namespace

const char* PartName(Part part) {
  constexpr const char* kNames[kParts] = {"gemm",      "experts", "attention",       "glue",     "recompute", "head",
                                          "tensor",    "context", "expert_exchange", "pipeline", "bubble",    "data",
                                          "optimizer", "step",    "stragglers"};
  return kNames[static_cast<size_t>(part)];
}

Seconds StepTime::total() const { return {std::accumulate(seconds.begin(), seconds.end(), 0.0)}; }

StepTime PredictStep(const Workload& workload, const Rates& rates) { return Model(workload, rates).Step(); }

StageTimes PredictStage(const Workload& workload, const Rates& rates) { return Model(workload, rates).Stage(); }

}  // namespace lockstep::plan
