#include "lockstep/plan/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/plan/memory.h"

namespace lockstep::plan {
namespace {

constexpr double kBytes = 2;         // of an activation, a weight, a gradient
constexpr double kPicked = .4;       // of a forward pass, computed again where an eager stack picks
constexpr double kAsyncTensor = .5;  // of what tensor parallelism shows, where it is cut into pieces

double Log2(double value) { return value > 1 ? std::log2(value) : 0; }

// Seconds of each direction of one layer, for one microbatch on one accelerator. wait: for the host, which launches
// kernels one by one.
struct Pass {
  double gemm = 0, experts = 0, attention = 0, glue = 0, tensor = 0, context = 0, exchange = 0, wait = 0;
  double computed() const { return gemm + experts + attention + glue; }
  double total() const { return computed() + tensor + context + exchange + wait; }
};

class Model {
 public:
  Model(const Workload& work, const Rates& rates)
      : w_(work), r_(rates), m_(work.machine), tokens_(double(work.microbatch) * work.sequence / work.cp) {}

  StepTime Step() const {
    const Pass forward = Forward(), backward = Backward(forward);
    const double recompute = Recomputed(forward), head = Head();
    const double layers = double(w_.layers) / w_.pp, batches = w_.Microbatches();
    const double layer = forward.total() + backward.total() + recompute;
    StepTime step;
    const double times = batches * layers, slowest = Slowest(layer, head);
    step[Part::kGemm] = times * (forward.gemm + backward.gemm);
    step[Part::kExperts] = times * (forward.experts + backward.experts);
    step[Part::kAttention] = times * (forward.attention + backward.attention);
    step[Part::kGlue] = times * (forward.glue + backward.glue + forward.wait + backward.wait);
    step[Part::kTensor] = times * (forward.tensor + backward.tensor);
    step[Part::kContext] = times * (forward.context + backward.context);
    step[Part::kExpertExchange] = times * (forward.exchange + backward.exchange);
    step[Part::kRecompute] = times * recompute;
    step[Part::kHead] = batches * (slowest - layers * layer);
    step[Part::kBubble] = (w_.layers * layer + head - slowest) / w_.chunks;
    step[Part::kPipeline] = Pipeline(batches);
    step[Part::kData] = Data(batches, layers, layer, backward.total());
    step[Part::kOptimizer] = Streamed(r_.optimizer_bytes * Updated());
    step[Part::kStep] = r_.step;
    step[Part::kStragglers] = step.total().value * r_.straggle * Log2(double(w_.accelerators) / m_.domain);
    return step;
  }

 private:
  double Reached(double share, double m, double n, double k) const {
    return share * m / (m + r_.half_m) * n / (n + r_.half_n) * k / (k + r_.half_k);
  }
  // All stages wait for that which takes longest. Equal ones: the last, which has the output layer too. Where layers do
  // not divide, some stages have one more, and the last does not.
  double Slowest(double layer, double head) const {
    const int rest = w_.layers % w_.pp;
    const double fewest = w_.layers / w_.pp;  // whole layers
    return rest == 0 ? fewest * layer + head : std::max((fewest + 1) * layer, fewest * layer + head);
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
    const double h = w_.hidden, inner = double(w_.heads) * w_.head_dim, kv = double(w_.kv_heads) * w_.head_dim;
    pass.gemm = Gemm(tokens_, (inner + 2 * kv) / w_.tp, h) + Gemm(tokens_, h, inner / w_.tp);
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
    const double flops = 4.0 * w_.microbatch * w_.sequence * w_.sequence * w_.heads * w_.head_dim / w_.tp / w_.cp;
    const double aligned = w_.head_dim % 8 == 0 ? 1 : r_.unaligned;
    const double uneven = 1 + r_.context_imbalance * (1 - 1.0 / w_.cp);
    if (w_.flash) return uneven * flops / 2 / (m_.bf16 * r_.flash * r_.attention * aligned);  // causal
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
    return 2 * one * (1 - Hidden(r_.tensor_hidden)) * (w_.async_tensor ? kAsyncTensor : 1);
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
    const double products = w_.training == Training::kLora ? 1.05 : 2;
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

  double Recomputed(const Pass& forward) const {
    switch (w_.recompute) {
      case Recompute::kFull:
      case Recompute::kAsNeeded:
        return RecomputedShare(w_) * forward.total();
      case Recompute::kSelective:
        return w_.keeps.eager ? kPicked * forward.computed() : forward.attention;
      default:
        return 0;
    }
  }

  // The output layer and the loss, in 16 bits, both directions.
  double Head() const {
    const double n = double(w_.vocabulary) / w_.tp;
    const double product = 2 * tokens_ * n * w_.hidden / (m_.bf16 * Reached(r_.gemm, tokens_, n, w_.hidden));
    const double directions = w_.training == Training::kLora ? 2 : 3;
    return directions * product + Streamed(12 * tokens_ * n) + r_.microbatch;
  }

  double Pipeline(double batches) const {
    if (w_.pp == 1) return 0;
    const double bytes = kBytes * tokens_ * w_.hidden / (w_.sequence_parallel ? w_.tp : 1);
    const bool inside = double(w_.tp) * w_.cp * w_.dp * w_.pp <= m_.domain;
    const double rate = inside ? m_.scale_up * r_.scale_up : m_.nic * r_.network;
    const double transfers = 2 * (batches + w_.pp - 1) * w_.chunks;
    return transfers * (bytes / rate + r_.latency) * (1 - Hidden(r_.pipeline_hidden));
  }

  // What a rank holds of the layers and, of two, an embedding.
  double Local() const {
    const double h = w_.hidden;
    const double experts = w_.ExpertParameters(), all = w_.Parameters() - 2 * h * w_.vocabulary;
    const double mixed = w_.experts > 0 ? w_.layers - w_.dense_layers : 0;
    const double layers = (all - mixed * experts) / w_.tp + mixed * experts / w_.ep;
    return layers / w_.pp + h * w_.vocabulary / w_.tp;
  }
  double Updated() const {
    const double trained = w_.training == Training::kLora ? .01 * Local() : Local();
    return w_.zero >= 1 ? trained / (double(w_.dp) * w_.cp) : trained;
  }

  double Data(double batches, double layers, double layer, double backward) const {
    const double size = double(w_.dp) * w_.cp;
    if (size == 1) return 0;
    const double rate = Rate(size, w_.tp), share = (size - 1) / size;
    if (w_.zero == 3) {  // gathered twice and scattered once: of each microbatch, or once where a pipeline keeps them
      const double trained = w_.training == Training::kLora ? 0 : 1, times = w_.pp > 1 ? 1 : batches;
      const double seconds = times * (2 + trained) * kBytes * Local() * share / (rate * r_.sharded_rate);
      const double computed = batches * layers * layer;
      return std::max(seconds - r_.sharded_hidden * computed, 0.0) + seconds / std::max(1.0, layers);
    }
    if (w_.training == Training::kLora) return 0;
    // Gradients, and as much of parameters or of the other half of an all-reduce; beside the last backward pass where
    // the stack can.
    const double seconds = 2 * kBytes * Local() * share / rate;
    const double hidden = Hidden(r_.data_hidden) * layers * backward;
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

}  // namespace lockstep::plan
