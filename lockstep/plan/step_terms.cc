// Seconds of a layer, of the output layer, of transfers: what all variants of a layout share.
#include <algorithm>
#include <cmath>

#include "lockstep/plan/bandwidth.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr double kBytes = 2;          // of an activation, a weight, a gradient
constexpr double kAdapters = .05;     // of a product: the gradients of adapters
constexpr double kPicked = .4;        // of a forward pass, computed again where an eager stack picks
constexpr double kAsyncTensor = .5;   // of what tensor parallelism shows, where it is cut into pieces
constexpr double kReduceKernels = 2;  // an all-reduce keeps the host as busy as so many more kernels
constexpr double kWindowTiles = 64;   // tokens before a window that a fused kernel of attention computes: half a tile
constexpr double kHostStream = .5;    // of the host's memory bandwidth, reached by an Adam on its processors

// Of the host and the device, side by side. A pass has small kernels, which wait for the host, and large ones, which do
// not: where both take as long as a whole, it takes a little longer than either.
double BothTake(double host, double device) {
  const auto fourth = [](double value) { return value * value * value * value; };
  const double h = fourth(host), d = fourth(device);
  return std::sqrt(std::sqrt(std::sqrt(h * h + d * d)));
}

double Log2(double value) { return value > 1 ? std::log2(value) : 0; }

using Pass = LayerSeconds;  // of each direction; wait: the device is idle, between kernels or for the host

Pass Sum(const Pass& a, const Pass& b) {
  return {a.gemm + b.gemm,     a.experts + b.experts, a.attention + b.attention, a.glue + b.glue,
          a.tensor + b.tensor, a.context + b.context, a.exchange + b.exchange,   a.wait + b.wait};
}

class Model {
 public:
  Model(const Workload& work, const Rates& rates)
      : w_(work),
        r_(rates),
        m_(work.machine),
        tokens_(double(work.microbatch) * work.sequence / work.cp),
        mixed_(work.MixedShare()) {}

  StepTerms Terms() const {
    StepTerms t;
    t.forward = Forward();
    const Pass trained = Backward(t.forward);
    t.trained = PassesOf(t.forward, trained);
    t.trained_backward = trained.total();
    if (w_.experts > 0 && w_.experts_every > 1) t.mixed = Plus(LayerWith(1), -1, LayerWith(0));
    t.backward = MeanBackward(t.forward, trained);
    t.both = Sum(t.forward, t.backward);
    t.pair = Pair(t.both);
    t.selective = w_.keeps.eager ? kPicked * t.forward.computed() : t.forward.attention;
    t.head = HeadPasses();
    TakeStages(w_, t);
    t.microbatches = w_.Microbatches();
    t.transfer = Transfer();
    t.transfer_bytes = TransferBytes();
    t.transfer_hidden = Hidden(r_.pipeline_hidden);
    TakeData(t);
    TakeHost(t);
    t.step = r_.step;
    t.straggle = r_.straggle * Log2(double(w_.accelerators) / m_.domain);
    return t;
  }

 private:
  Passes PassesOf(const Pass& forward, const Pass& backward) const {
    const double weight = Weights(forward).total();
    return {forward.total(), backward.total() - weight, weight};
  }
  // Of a layer of which such a share has experts.
  Passes LayerWith(double share) const {
    Model other = *this;
    other.mixed_ = share;
    const Pass forward = other.Forward();
    return PassesOf(forward, other.Backward(forward));
  }
  double TransferBytes() const { return kBytes * tokens_ * w_.hidden / (w_.sequence_parallel ? w_.tp : 1); }
  double Reached(double share, double m, double n, double k) const {
    return share * m / (m + r_.half_m) * n / (n + r_.half_n) * k / (k + r_.half_k);
  }
  // Of the precision of the layers.
  double Gemm(double m, double n, double k) const {
    return 2 * m * n * k / (m_.Peak(w_.precision) * Reached(GemmShare(w_, r_), m, n, k));
  }
  double Streamed(double bytes) const { return bytes / (m_.bandwidth * r_.stream); }

  double Rate(double size, double stride) const { return GroupRate(m_, r_, size, stride); }

  Pass Forward() const {
    Pass pass;
    pass.gemm = w_.latent.kv_rank > 0 ? LatentProjections() : Projections();
    if (mixed_ < 1) pass.gemm += (1 - mixed_) * FeedForward(w_.ffn);
    if (mixed_ > 0 && w_.shared_experts > 0)
      pass.gemm += mixed_ * FeedForward(double(w_.shared_experts) * w_.expert_ffn);
    if (mixed_ > 0) pass.experts = mixed_ * Experts();
    pass.attention = Attention();
    pass.glue = Glue();
    pass.tensor = Tensor();
    pass.context = Context(pass.attention);
    pass.exchange = Exchange(pass.experts);
    pass.wait = Wait(pass, 1);
    return pass;
  }

  double Projections() const {
    const double h = w_.hidden, inner = double(w_.heads) / w_.tp * w_.head_dim,
                 kv = double(w_.kv_heads) / w_.tp * w_.head_dim;
    return Gemm(tokens_, inner + 2 * kv, h) + Gemm(tokens_, h, inner);
  }
  // What is compressed is so on each rank of tp; what comes out of it is split.
  double LatentProjections() const {
    const cluster::LatentAttention& l = w_.latent;
    const double h = w_.hidden, heads = double(w_.heads) / w_.tp, queries = heads * w_.head_dim;
    const double down = l.q_rank + l.kv_rank + l.rope, keys = heads * (w_.head_dim - l.rope + l.value_dim);
    const double query = Gemm(tokens_, queries, l.q_rank > 0 ? l.q_rank : h);
    return Gemm(tokens_, down, h) + query + Gemm(tokens_, keys, l.kv_rank) + Gemm(tokens_, h, heads * l.value_dim);
  }

  double FeedForward(double width) const {
    return Gemm(tokens_, (w_.gated ? 2 : 1) * width / w_.tp, w_.hidden) + Gemm(tokens_, w_.hidden, width / w_.tp);
  }
  double Experts() const {
    const double local = double(w_.experts) / w_.ep, routed = Dispatched() * w_.top_k / local, width = w_.expert_ffn;
    const double piece = routed / w_.moe_chunks;
    const double products = Gemm(piece, (w_.gated ? 2 : 1) * width, w_.hidden) + Gemm(piece, w_.hidden, width);
    return local * w_.moe_chunks * products / r_.expert_gemm;
  }

  // In which the device computes nothing: between two kernels; while the host has not launched the next ones; or, where
  // each launch is waited for, after each of them.
  double Wait(const Pass& pass, double times) const {
    double kernels = r_.kernels + (SoftmaxIsEager() ? r_.eager_softmax : 0);
    if (w_.tp > 1) kernels += kReduceKernels * TensorReductions();
    if (w_.blocking_launches) return times * kernels * r_.blocked;
    const double experts =
        w_.experts > 0 && !w_.drops_tokens ? mixed_ * r_.expert_kernels * w_.moe_chunks * w_.experts / w_.ep : 0;
    const double launched = times * (kernels + experts);
    const double host = launched * r_.kernel, device = pass.total() + launched * r_.kernel_gap;
    return std::max(0.0, BothTake(host, device) - pass.total());
  }
  // Megatron's fused kernel takes four matrices of scores at a time, or none.
  bool SoftmaxIsEager() const { return !w_.flash && w_.heads / w_.tp * w_.microbatch % 4 != 0; }
  // Nothing runs beside what is waited for.
  double Hidden(double share) const { return w_.blocking_launches ? 0 : share; }

  double Attention() const {
    const double flops = 4.0 * w_.microbatch * w_.sequence * w_.sequence * w_.heads * w_.ScoreDim() / w_.tp / w_.cp;
    const double aligned = w_.head_dim % 8 == 0 ? 1 : r_.unaligned;
    const double uneven = 1 + r_.context_imbalance * (1 - 1.0 / w_.cp);
    const double masked = w_.causal ? .5 * w_.ScoreShare(kWindowTiles) : 1;
    if (w_.flash) return uneven * flops * masked / (m_.bf16 * Flash() * aligned);
    const double squares = double(w_.microbatch) * w_.heads / w_.tp / w_.cp * w_.sequence * w_.sequence;
    return flops / (m_.bf16 * r_.unfused * aligned) + Streamed(r_.softmax_passes * kBytes * squares);
  }

  // The share that the hardware reaches, and what the stack makes of it: of their odds, so that no pair reaches all.
  double Flash() const {
    if (r_.flash >= 1) return r_.flash;  // without bound: attention left out (step_parts.cc)
    const double odds = r_.flash / (1 - r_.flash) * r_.attention;
    return odds / (1 + odds);
  }

  // What lies outside of the split matrices is done by each rank of them, unless the sequence is split there.
  double Glue() const {
    const double share = w_.sequence_parallel || w_.tp == 1 ? 1.0 / w_.tp : .6 + .4 / w_.tp;
    return Streamed(r_.glue_bytes * tokens_ * w_.hidden * share + RoutedBytes());
  }

  // Each copy of a token is moved to its expert's rows and back, read and written; and what is between an expert's
  // products.
  double RoutedBytes() const {
    const double moved = 4.0 * w_.hidden * (w_.gathers_routed ? tokens_ : Dispatched());
    const double between = (w_.gated ? 3.0 : 2.0) * w_.expert_ffn * Dispatched();
    return mixed_ * w_.top_k * kBytes * (moved + between);
  }

  double Tensor() const {
    if (w_.tp == 1) return 0;
    const double bytes = kBytes * tokens_ * w_.hidden, n = w_.tp;
    const double one = 2 * bytes * (n - 1) / n / Rate(n, 1) + r_.latency * m_.LatenciesOfReduce(n);
    const double shown = (1 - (w_.hides_tensor ? Hidden(r_.tensor_hidden) : 0)) * (w_.async_tensor ? kAsyncTensor : 1);
    return TensorReductions() * one * shown + GatherOfHeads();
  }
  // Nothing runs beside it; its backward pass scatters as much.
  double GatherOfHeads() const {
    const double bytes = kBytes * tokens_ * w_.GatheredColumns(), n = w_.tp;
    return bytes > 0 ? bytes * (n - 1) / n / Rate(n, 1) + r_.latency * m_.LatenciesOfReduce(n) / 2 : 0;
  }

  // Of a layer: behind attention, and behind what is split of the rest. Experts that are spread over ep are not.
  double TensorReductions() const {
    const bool alone = w_.ep > 1 && w_.shared_experts == 0;
    return alone ? 2 - mixed_ : 2;
  }

  double Context(double attention) const {
    if (w_.cp == 1) return 0;
    const double bytes = 2 * kBytes * tokens_ * w_.LocalKvHeads() * w_.head_dim * (w_.cp - 1);
    return std::max(0.0, bytes / Rate(w_.cp, w_.tp) + r_.latency - r_.context_hidden * attention);
  }

  double Dispatched() const { return tokens_ / w_.TokenShares(); }  // by a rank
  // Of both exchanges of a layer, one piece's.
  double PieceOfExchange() const {
    if (w_.experts == 0 || w_.ep == 1) return 0;
    const OneWay way = TokensToExperts();
    return mixed_ * ((way.seconds() + Back(way)) / w_.moe_chunks + (w_.gathers_routed ? 3 : 2) * r_.latency);
  }
  // What shows of them beside the experts' products. In pieces the first goes out and the last comes back alone (FSMoE,
  // EuroSys 2025, cases 2 and 3); else as much is hidden as the stack hides.
  double Exchange(double products) const {
    const double pieces = w_.moe_chunks, piece = PieceOfExchange();
    if (pieces == 1) return piece * (1 - Hidden(r_.expert_hidden));
    return piece + std::max(0.0, (pieces - 1) * piece - products);
  }
  // Seconds on the links within domains, and at the same time on the network.
  struct OneWay {
    double inside = 0, outside = 0;
    double seconds() const { return std::max(inside, outside); }
  };
  // Tokens go to their experts, or come back; to each other domain once, for whichever of its experts they need.
  OneWay TokensToExperts() const {
    const double n = w_.ep, bytes = kBytes * Dispatched() * w_.top_k * w_.hidden * (n - 1) / n;
    const double stride = double(w_.tp) / w_.TokenShares();
    const double within = std::min(n, Within(m_.domain, stride));
    const double domains = n / within, needed = w_.top_k * (1 - 1 / domains);
    const double once = domains > 1 ? (domains - 1) * (1 - std::pow(1 - 1 / domains, w_.top_k)) / needed : 1;
    const auto beyond = [&](double ranks) {
      return bytes * std::max(0.0, n - ranks) / std::max(1.0, n - 1) * std::min(1.0, once);
    };
    const double outside = beyond(within);
    OneWay way{(bytes - outside) / (m_.scale_up * r_.scale_up), outside / (m_.nic * r_.network)};
    for (const Tier& tier : m_.tiers)
      way.outside = std::max(way.outside, beyond(Within(tier.accelerators, stride)) / (tier.bandwidth * r_.network));
    return way;
  }
  // As long as the way out; or each of ep parts is gathered, over tp, while the next one is on the network.
  double Back(const OneWay& way) const {
    if (!w_.gathers_routed) return way.seconds();
    const double n = w_.tp, bytes = kBytes * tokens_ * w_.top_k * w_.hidden * (n - 1) / n, gather = bytes / Rate(n, 1);
    return std::max(way.outside, way.inside + gather) + std::min(way.outside, gather) / w_.ep;
  }

  // Matrix products twice: for the input and for the weight; of adapters only the first. A fused kernel of attention
  // computes the scores once more.
  Pass Backward(const Pass& forward) const {
    Pass pass = forward;
    pass.gemm *= 1 + WeightShare();
    pass.experts *= 1 + WeightShare();
    pass.attention *= w_.flash ? 2.5 : 2;
    pass.glue *= 2;
    pass.context *= 2;
    pass.exchange = Exchange(pass.experts);
    pass.wait = 0;
    pass.wait = Wait(pass, 2);
    return pass;
  }
  // All computing hides all exchanges, what experts' products hide of those included. Of what is hidden the device no
  // longer waits meanwhile, so it may wait for the host instead.
  Pass Pair(const Pass& both) const {
    Pass pass = both;
    const double whole = (1 + Passed()) * w_.moe_chunks * PieceOfExchange();
    pass.exchange = std::clamp(whole - both.computed(), 0.0, both.exchange);
    pass.wait = 0;
    pass.wait = Wait(pass, 3);
    return pass;
  }
  // Of a backward pass what is for the weights: of its launches, twice those of a forward pass, one half.
  Pass Weights(const Pass& forward) const {
    Pass pass;
    pass.gemm = WeightShare() * forward.gemm;
    pass.experts = WeightShare() * forward.experts;
    pass.wait = Wait(pass, 1);
    return pass;
  }
  // Gradients of weights, as a share of the products of a forward pass.
  double WeightShare() const { return w_.training == Training::kLora ? kAdapters : 1; }
  // Of the layers, those that a backward pass reaches.
  double Passed() const { return 1 - w_.LayersBelow() / double(w_.layers); }
  // A frozen layer needs no gradients of its weights, and where nothing below is trained no backward pass at all.
  Pass MeanBackward(const Pass& forward, const Pass& trained) const {
    if (w_.frozen.layers == 0) return trained;
    const double passed = Passed(), warm = 1 - w_.frozen.layers / double(w_.layers);
    const Pass weights = Weights(forward);
    const auto without = [&](double weight, double all) { return passed * (all - weight) + warm * weight; };
    return {.gemm = without(weights.gemm, trained.gemm),
            .experts = without(weights.experts, trained.experts),
            .attention = passed * trained.attention,
            .glue = passed * trained.glue,
            .tensor = passed * trained.tensor,
            .context = passed * trained.context,
            .exchange = passed * trained.exchange,
            .wait = without(weights.wait, trained.wait)};
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

  // To the next stage, hidden or not.
  double Transfer() const {
    if (w_.pp == 1) return 0;
    return TransferBytes() / PairRate(m_, r_, double(w_.tp) * w_.cp * w_.dp * w_.pp) + r_.latency;
  }

  // Parameters that a rank holds: its experts' are other ranks' business than the rest.
  struct Held {
    double rest = 0, experts = 0;
    double all() const { return rest + experts; }
  };
  // Of the layers and an embedding; of both where no pipeline keeps them apart.
  Held Local() const { return LocalOf(1.0 / w_.pp, Embeddings()); }
  // Of those what is trained, on the stage that has most of it.
  Held Trained() const {
    return LocalOf(std::min(1.0 / w_.pp, (w_.layers - w_.frozen.layers) / double(w_.layers)),
                   w_.frozen.embedding ? Embeddings() / w_.EndEmbeddings() : Embeddings());
  }
  Held LocalOf(double share, double embeddings) const {
    const double experts = w_.MixedLayers() * w_.ExpertParameters();
    const double rest = w_.LayersParameters() - experts;
    return {rest / w_.tp * share + embeddings, experts / w_.ep * share};
  }

  double Embeddings() const { return double(w_.hidden) * w_.vocabulary / w_.tp * w_.EndEmbeddings(); }

  // Ranks that hold the same, how far they lie apart, and how many of them share it under ZeRO.
  struct Copies {
    double ranks = 1, stride = 1, shards = 1;
    double groups() const { return ranks / shards; }
  };
  Copies OfRest() const { return {double(w_.Replicas()), double(w_.tp), double(w_.ShardRanks())}; }
  Copies OfExperts() const {
    const double shares = w_.TokenShares();
    const auto of = [&](double replicas) { return std::max(1.0, replicas * shares / w_.ep); };
    return {of(double(w_.Replicas())), w_.tp / shares * w_.ep, of(double(w_.ShardRanks()))};
  }
  // Of each rank, once through a ring of so many.
  static double RingBytes(double parameters, double ranks) { return kBytes * parameters * (ranks - 1) / ranks; }
  double Around(double parameters, double ranks, double stride, double reached) const {
    return RingBytes(parameters, ranks) / (Rate(ranks, stride) * reached);
  }

  // Beside the last backward pass, where the stack can. ZeRO 3 gathers weights twice and scatters gradients once.
  void TakeData(StepTerms& t) const {
    const Held held = Local(), trained = Trained();
    const Copies rest = OfRest(), experts = OfExperts();
    AddCopies(held.rest, trained.rest, rest, t);
    AddCopies(held.experts, trained.experts, experts, t);
    if (w_.training == Training::kLora) t.data = t.data_bytes = t.scatter = t.replicate = 0;
    t.data_hidden = Hidden(r_.data_hidden);
    t.sharded_hidden = r_.sharded_hidden;
    t.whole = UpdateOf(trained.all());
    t.shared = UpdateOf(trained.rest / rest.shards + trained.experts / experts.shards);
  }
  // Gradients, and as much again of parameters or of the other half of an all-reduce.
  void AddCopies(double held, double trained, const Copies& of, StepTerms& t) const {
    t.data += 2 * Around(trained, of.ranks, of.stride, 1);
    t.data_bytes += 2 * RingBytes(trained, of.ranks);
    t.gather += 2 * Around(held, of.shards, of.stride, r_.sharded_rate);
    t.scatter += Around(trained, of.shards, of.stride, r_.sharded_rate);
    t.replicate += 2 * Around(trained / of.shards, of.groups(), of.stride * of.shards, 1);
  }

  void TakeHost(StepTerms& t) const {
    if (!HasHost()) return;
    const KeptBytes kept = KeptBytesOf(w_);
    t.to_host = {kept.all / m_.host_link, kept.selected / m_.host_link, kept.input / m_.host_link};
    const Held held = Local();
    const double rest = held.rest - Embeddings();
    const double layer = (rest / OfRest().shards + held.experts / OfExperts().shards) / (double(w_.layers) / w_.pp);
    t.from_host = kBytes * layer / m_.host_link, t.gradients = w_.keeps.gradient_bytes * layer / m_.host_link;
  }
  // The host updates parameters as fast as its memory lets it, while those that it is done with go back.
  Update UpdateOf(double parameters) const {
    Update update{.here = Streamed(r_.optimizer_bytes * (w_.training == Training::kLora ? kAdapted : 1) * parameters)};
    if (!HasHost()) return update;
    update.host = r_.optimizer_bytes * parameters / (m_.host_bandwidth * kHostStream);
    update.gradients = w_.keeps.gradient_bytes * parameters / m_.host_link;
    update.parameters = kBytes * parameters / m_.host_link;
    return update;
  }
  bool HasHost() const { return m_.host_link > 0 && m_.host_bandwidth > 0; }

  const Workload& w_;
  const Rates& r_;
  const Machine& m_;
  const double tokens_;  // of a microbatch, on one accelerator
  double mixed_;         // the share of the layers that have experts
};

}  // namespace

StepTerms TermsOf(const Workload& workload, const Rates& rates) { return Model(workload, rates).Terms(); }

void TakeStages(const Workload& w, StepTerms& t) {
  t.stages = w.pp;
  t.layers = w.layers;
  t.mixed_share = w.MixedShare();
  // Where layers do not divide, some stages have one more, and the last does not.
  const int each = w.layers / w.pp, more = w.layers % w.pp > 0 ? 1 : 0;
  t.last_layers = each;
  t.most_layers = each + more;
  t.frozen = w.frozen.layers;
  t.skips_frozen = w.frozen.embedding;
  t.runs.clear();
  if (!w.AllStagesAlike()) t.runs = w.StageRuns();
}

}  // namespace lockstep::plan
