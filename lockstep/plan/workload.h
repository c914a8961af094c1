// What is trained, on what, and how it is spread: all that a prediction needs to know, in one plain struct. Made of
// presets and flags, or of a row of a table of measured runs (measured.h). Nothing in it was measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/cluster/model.h"

namespace lockstep::plan {

enum class Precision { kBf16, kFp8, kFp4 };  // of the layers' matrices; fp16 counts as bf16

// A part of the network: so many accelerators reach each other without leaving it, and beyond it each has so many B/s.
struct Tier {
  int accelerators = 0;
  double bandwidth = 0;
};

struct Machine {
  std::string name, rates;            // rates: whose calibration is its own (rates.h)
  double bf16 = 0, fp8 = 0, fp4 = 0;  // FLOP/s, dense peaks; 0: it has none
  double memory = 0, bandwidth = 0;   // bytes; B/s
  double scale_up = 0, nic = 0;       // B/s of an accelerator in one direction: to its peers; to the network
  int domain = 8;                     // accelerators that reach each other by the first
  std::vector<Tier> tiers{};          // beyond domains, each larger than the one before it
  // Of an accelerator with its share of the host: dollars an hour, watts. 0: not known.
  double usd_per_hour = 0, power = 0;
  double cache = 0, cache_bandwidth = 0;  // of its second level: bytes; B/s. 0: not known, none, no bound
  // Of an accelerator, its share: B/s to the host in one direction; bytes and B/s of the host's memory. 0: not known.
  double host_link = 0, host_memory = 0, host_bandwidth = 0;

  double Peak(Precision of) const { return of == Precision::kFp8 ? fp8 : of == Precision::kFp4 ? fp4 : bf16; }
  // B/s of an accelerator to the network, where a group reaches that far: the least of what it leaves.
  double Network(double accelerators) const {
    double least = nic;
    for (const Tier& tier : tiers)
      if (accelerators > tier.accelerators) least = std::min(least, tier.bandwidth);
    return least;
  }
  // How often an all-reduce takes a collective's latency: a quarter of the 2(n - 1) steps of a ring of up to eight
  // within a domain, and as many as those rings can be halved, as in a tree.
  double LatenciesOfReduce(double ranks) const {
    const double within = std::min({ranks, double(domain), 8.0});
    return (within - 1) / 2 + std::log2(ranks / within);
  }
};

// kAsNeeded: of as few layers as it takes to fit the memory; selective: of the attention alone, or of what an eager
// stack picks.
enum class Recompute { kNone, kSelective, kFull, kAsNeeded };
// What a software stack keeps in memory (stacks.h has its habits). unfused: the scores of attention; eager: the work of
// a sharded wrapper, operation by operation.
struct StackMemory {
  bool unfused = false, eager = false;
  double gradient_bytes = 4;   // of each parameter that a rank holds: summed in 32 bits, or in 16
  double adam_bytes = 12;      // of a parameter: two moments and the master weight, in 32 bits; or in fewer
  double logit_bytes = 4;      // in all copies that live at once
  double selective_kept = .6;  // share of a layer's activations that an eager stack keeps, where it picks
  double stage_buffers = 0;    // inputs of a stage, for each microbatch under way, beside those of its layers
  double gathered_bytes = 0;   // per token and hidden unit, of what tensor parallelism gathers for one layer
};
enum class Training { kFull, kLora };
inline constexpr double kAdapted = .01;  // of the parameters: those of adapters
// What is trained no further: the first layers, and the embedding. Where both are, nothing below the first layer that
// is trained needs a backward pass.
struct Frozen {
  int layers = 0;
  bool embedding = false;
};
// What lies in the host's memory while it is not in use: Adam's state, which the host then updates (arXiv 2101.06840);
// what layers keep for their backward pass; beside Adam's state, the weights and gradients of layers (arXiv
// 2104.07857).
struct Offload {
  bool optimizer = false, activations = false, weights = false;
  bool any() const { return optimizer || activations || weights; }
  bool operator==(const Offload&) const = default;
};
// Stages in a row that are alike; the layers of each, and how many of those are frozen, and have experts.
struct StageRun {
  int first = 0, count = 1;
  double layers = 0, frozen = 0, mixed = 0;
};
// The order in which the stages of a pipeline compute (schedule.h).
enum class Schedule { k1F1B, kZeroBubbleH1, kZeroBubble2p, kDualPipe };

inline constexpr int kMostMoeChunks = 32, kMostAccelerators = 1 << 20;
inline constexpr double kMostTokens = 1e9;  // of a step: nobody has had a tenth of that

struct Workload {
  // The model.
  int layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocabulary = 0;
  bool gated = false;
  bool causal = true;
  bool tied_embeddings = false;  // the output layer is the embedding
  cluster::LatentAttention latent;
  int experts = 0, top_k = 0, expert_ffn = 0;  // 0: dense
  int dense_layers = 0, shared_experts = 0;    // of a mixture: the first layers, and what every token goes to
  int experts_every = 1;                       // of so many of the layers behind those the last has experts
  cluster::Window window;
  // The work.
  int sequence = 0, global_batch = 0, microbatch = 1;
  bool flash = true;
  Precision precision = Precision::kBf16;
  bool row_scales = false;         // in fp8, a scale for each row of a matrix
  bool drops_tokens = false;       // experts of a fixed capacity: one product for all
  bool blocking_launches = false;  // the host waits for each kernel
  bool async_tensor = false;       // tensor parallelism is cut into pieces that run beside products
  Training training = Training::kFull;
  Frozen frozen;
  Recompute recompute = Recompute::kNone;
  int recomputed_layers = 0;  // of each stage, the first; 0: all; where kFull
  std::string stack;          // whose habits the rates have; empty: the usual
  StackMemory keeps;
  // The layout.
  int accelerators = 1, tp = 1, pp = 1, dp = 1, cp = 1, ep = 1, chunks = 1;  // chunks: per stage, interleaved
  int zero = 0;
  int shard = 0;       // so many replicas share what ZeRO 3 shares, and each such group has all of it (HSDP); 0: all
  int moe_chunks = 1;  // pieces of a microbatch that experts exchange and compute in turn; 1: as the stack does
  bool sequence_parallel = false;
  // Without it: a rank of tensor parallelism sends its share of what all of them routed to experts, and what comes back
  // is gathered meanwhile (Parm's S2, arXiv 2407.00599).
  bool gathers_routed = false;
  bool hides_tensor = true, hides_data = true, hides_transfers = true;  // communication, as far as the stack can
  Schedule schedule = Schedule::k1F1B;                                  // interleaved where a stage has several chunks
  std::vector<int> stage_layers;                                        // of each stage; empty: all have as many
  Offload offload;
  Machine machine;

  // kInvalidArgument, with what does not fit: sizes below one, a layout that does not multiply to the accelerators,
  // heads, layers, experts or a batch that do not divide.
  absl::Status Validate() const;
  absl::Status ValidateModel() const;  // whatever the layout, the batch and the accelerators
  int Microbatches() const;
  double Tokens() const { return double(global_batch) * sequence; }  // of a step
  // Over tp, where sequence parallelism has to.
  bool CanSplitSequence() const { return tp > 1 && sequence % (int64_t{tp} * cp) == 0; }
  // Ranks that send experts tokens of their own, over which those are spread: replicas, and of each those over which
  // the sequence, or what was routed, is split; else all ranks of tensor parallelism do the same (Parm).
  int TokenShares() const { return sequence_parallel || gathers_routed ? tp : 1; }
  int64_t Replicas() const { return int64_t{dp} * cp; }
  int64_t ShardRanks() const { return shard > 0 ? shard : Replicas(); }
  int64_t TokenRanks() const { return Replicas() * TokenShares(); }
  // Of experts that several groups share, each group has the same number of copies, or a part.
  bool CanShareExperts() const {
    const int64_t ranks = ShardRanks() * TokenShares();
    return shard == 0 || ranks % ep == 0 || ep % ranks == 0;
  }
  // Layers come from the host for each microbatch, so nobody may need their gradients afterwards.
  bool CanOffloadWeights(int of_zero) const {
    const bool are_alone = Replicas() == 1 && (experts == 0 || TokenRanks() <= ep);
    return pp == 1 && (of_zero == 3 || are_alone);
  }
  // Each rank of tp has as many heads of queries, and of keys and values a whole number too, or one that several have.
  bool CanSplitHeads(int ranks) const {
    return heads % ranks == 0 && (latent.kv_rank > 0 || kv_heads % ranks == 0 || ranks % kv_heads == 0);
  }
  double LocalKvHeads() const { return std::max(1.0, double(kv_heads) / tp); }
  // Where ranks of tp have parts of a head of keys and values, they gather all queries, keys and values, so many
  // columns, and take their own (megatron-core, attention.py); else 0.
  double GatheredColumns() const {
    return latent.kv_rank > 0 || kv_heads >= tp ? 0 : (heads + 2.0 * kv_heads) * head_dim;
  }
  int OutputDim() const { return latent.kv_rank > 0 ? latent.value_dim : head_dim; }  // of a head of attention
  // On a stage at an end of the model: its own, and where that is the other end too, the output layer's.
  int EndEmbeddings() const { return pp == 1 && !tied_embeddings ? 2 : 1; }
  double StageLayers(int stage) const;
  double FirstLayer(int stage) const;
  // Layers with experts of a stage. Where only the first layers of the model have none, as many as in the mean: who
  // trains such a model gives those stages more layers.
  double StageMixed(int stage) const;
  std::vector<StageRun> StageRuns() const;
  bool AllStagesAlike() const { return stage_layers.empty() && frozen.layers == 0 && AllStagesMixedAlike(); }
  bool AllStagesMixedAlike() const;
  // Layers that have experts, among the first so many, and in all.
  int MixedBelow(int layer) const {
    return experts > 0 && layer > dense_layers ? (layer - dense_layers) / experts_every : 0;
  }
  int MixedLayers() const { return MixedBelow(layers); }
  double MixedShare() const { return double(MixedLayers()) / layers; }
  // Of all scores of a decoder that is not windowed, those that attention computes, which beyond a window takes in so
  // many tokens more.
  double ScoreShare(double beyond = 0) const {
    const double outside = std::max(0.0, 1 - (window.tokens + beyond) / sequence);
    return 1 - outside * outside * window.layers / layers;
  }
  int LayersBelow() const { return frozen.embedding ? frozen.layers : 0; }  // which no backward pass reaches
  double LayerParameters() const;                                           // of one layer; of a mixture, all experts
  double ExpertParameters() const;                                          // of those, what is split over ep
  double DenseLayerParameters() const;                                      // of a layer without a mixture
  double AttentionParameters() const;
  double ActiveParameters() const;  // of all layers, those that a token meets, without routers
  double ScoreDim() const;          // of a head, in the mean of its keys and its values
  double LayersParameters() const;  // of all layers
  double Parameters() const;        // all, with the embedding and the output layer
};

}  // namespace lockstep::plan
