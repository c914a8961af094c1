#include "lockstep/plan/emit.h"

#include "lockstep/plan/layout.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

// Of each chunk of a stage.
int Recomputed(const Workload& w) { return (RecomputedLayers(w) + w.chunks - 1) / w.chunks; }
bool RecomputesAll(const Workload& w) { return w.recompute == Recompute::kFull && w.recomputed_layers == 0; }

// Layers of the first stage, of each in the middle, of the last; where those in the middle are alike.
struct Ends {
  int first = 0, middle = 0, last = 0;
};
absl::StatusOr<Ends> EndsOf(std::string_view framework, const Workload& w) {
  if (w.stage_layers.empty()) return Ends{w.layers / w.pp, w.layers / w.pp, w.layers / w.pp};
  const std::vector<int>& stages = w.stage_layers;
  const int middle = stages.size() > 2 ? stages[1] : std::max(stages.front(), stages.back());
  for (size_t i = 1; i + 1 < stages.size(); ++i)
    if (stages[i] != middle)
      return InvalidArgument("--emit {}: it has flags for the first and the last stage alone; the others must be alike",
                             framework);
  return Ends{stages.front(), middle, stages.back()};
}

absl::Status CheckExchange(std::string_view framework, const Workload& w) {
  if (w.gathers_routed)
    return InvalidArgument("--emit {}: it has no flag to split what was routed, found moe_gather 1", framework);
  if (w.moe_chunks == 1) return absl::OkStatus();
  return InvalidArgument("--emit {}: it has no flag for pieces of an exchange of experts, found moe_chunks {}",
                         framework, w.moe_chunks);
}

std::string MegatronRecompute(const Workload& w) {
  if (w.recompute == Recompute::kSelective) return "--recompute-granularity selective\n";
  if (RecomputesAll(w)) return "--recompute-granularity full\n--recompute-method uniform\n--recompute-num-layers 1\n";
  if (Recomputed(w) == 0) return "";
  return fmt::format("--recompute-granularity full\n--recompute-method block\n--recompute-num-layers {}\n",
                     Recomputed(w));
}

std::string MegatronAttention(const Workload& w) {
  const cluster::LatentAttention& l = w.latent;
  std::string text = fmt::format("--num-attention-heads {}\n", w.heads);
  if (l.kv_rank > 0) {
    text += "--multi-latent-attention\n";
    if (l.q_rank > 0) text += fmt::format("--q-lora-rank {}\n", l.q_rank);
    return text + fmt::format("--kv-lora-rank {}\n--qk-head-dim {}\n--qk-pos-emb-head-dim {}\n--v-head-dim {}\n",
                              l.kv_rank, w.head_dim - l.rope, l.rope, l.value_dim);
  }
  if (w.kv_heads != w.heads) text += fmt::format("--group-query-attention\n--num-query-groups {}\n", w.kv_heads);
  if (int64_t{w.head_dim} * w.heads != w.hidden) text += fmt::format("--kv-channels {}\n", w.head_dim);
  return text;
}

// Of each layer 1 where it has experts, as an expression of lists.
std::string MixedPattern(const Workload& w) {
  const int behind = w.layers - w.dense_layers, all = behind / w.experts_every, left = behind % w.experts_every;
  std::string text = w.dense_layers > 0 ? fmt::format("[0]*{}+", w.dense_layers) : "";
  if (w.experts_every == 1) return text + fmt::format("[1]*{}", behind);
  text += fmt::format("([0]*{}+[1]*1)*{}", w.experts_every - 1, all);
  return left > 0 ? text + fmt::format("+[0]*{}", left) : text;
}

std::string MegatronExperts(const Workload& w) {
  if (w.experts == 0) return "";
  std::string text = fmt::format("--num-experts {}\n--moe-router-topk {}\n--moe-ffn-hidden-size {}\n", w.experts,
                                 w.top_k, w.expert_ffn);
  if (w.shared_experts > 0)
    text += fmt::format("--moe-shared-expert-intermediate-size {}\n", int64_t{w.shared_experts} * w.expert_ffn);
  if (w.MixedLayers() < w.layers) text += fmt::format("--moe-layer-freq \"({})\"\n", MixedPattern(w));
  return text;
}

// A window of so many tokens reaches to one less before its own. It says of which layers the last has none.
absl::StatusOr<std::string> MegatronWindow(const Workload& w) {
  if (w.window.layers == 0) return "";
  std::string text = fmt::format("--window-size \"({},0)\"\n", w.window.tokens - 1);
  if (w.window.layers == w.layers) return text;
  const int whole = w.layers - w.window.layers, every = w.layers / whole;
  if (w.layers / every != whole)
    return InvalidArgument("--emit megatron: windows in {} of {} layers are in no regular order", w.window.layers,
                           w.layers);
  return text + fmt::format("--window-attn-skip-freq {}\n", every);
}

absl::StatusOr<std::string> MegatronModel(const Workload& w) {
  std::string text =
      fmt::format("--num-layers {}\n--hidden-size {}\n--ffn-hidden-size {}\n", w.layers, w.hidden, w.ffn);
  LS_ASSIGN_OR_RETURN(const std::string window, MegatronWindow(w));
  text += MegatronAttention(w) + window;
  if (w.gated) text += "--swiglu\n";
  if (!w.tied_embeddings) text += "--untie-embeddings-and-output-weights\n";
  text += MegatronExperts(w);
  return text + fmt::format("--seq-length {}\n--max-position-embeddings {}\n", w.sequence, w.sequence);
}

// What runs beside computing, as far as the prediction has it so.
std::string MegatronOverlap(const Workload& w) {
  std::string text;
  if (w.tp > 1 && w.sequence_parallel && w.hides_tensor) text += "--tp-comm-overlap\n";
  if (w.chunks > 1 && !w.hides_transfers) text += "--no-overlap-p2p-communication\n";
  if (w.zero == 1) text += "--use-distributed-optimizer\n";
  // Torch's own does so by itself.
  if (w.zero == 3) return text + "--use-torch-fsdp2\n--no-gradient-accumulation-fusion\n--ckpt-format torch_dist\n";
  if (w.hides_data && (w.zero == 1 || w.Replicas() > 1)) text += "--overlap-grad-reduce\n";
  return w.hides_data && w.zero == 1 ? text + "--overlap-param-gather\n" : text;
}

absl::StatusOr<std::string> Megatron(const Workload& w) {
  if (w.schedule != Schedule::k1F1B)
    return InvalidArgument("--emit megatron: it has no schedule {}; choose 1f1b", ScheduleName(w.schedule));
  if (w.shard > 0)
    return InvalidArgument("--emit megatron: all replicas share what zero 3 shares, found shard {}", w.shard);
  if (w.zero == 2) return InvalidArgument("--emit megatron: it has zero 0, 1 and 3, found 2");
  LS_RETURN_IF_ERROR(CheckExchange("megatron", w));
  if (w.zero == 3 && (w.pp > 1 || w.ep > 1))
    return InvalidArgument("--emit megatron: zero 3 (--use-torch-fsdp2) is without pp and ep there, found {} and {}",
                           w.pp, w.ep);
  if (w.zero == 3 && !w.hides_data)
    return InvalidArgument("--emit megatron: zero 3 (--use-torch-fsdp2) hides what replicas exchange, found it shown");
  if (w.experts > 0 && w.tp > 1 && !w.sequence_parallel)
    return InvalidArgument("--emit megatron: experts with tp {} need seq_parallel 1", w.tp);
  if (w.zero == 3 && w.tied_embeddings)
    return InvalidArgument(
        "--emit megatron: zero 3 (--use-torch-fsdp2) is for an output layer of its own there, found tied embeddings");
  if (!w.flash && w.cp > 1)
    return InvalidArgument("--emit megatron: its unfused attention is without cp there, found cp {}", w.cp);
  LS_ASSIGN_OR_RETURN(const Ends ends, EndsOf("megatron", w));
  if (w.offload.weights) return InvalidArgument("--emit megatron: it keeps weights on the device");
  if (w.offload.optimizer && w.zero != 1)
    return InvalidArgument("--emit megatron: it offloads the optimizer that replicas share, zero 1, found zero {}",
                           w.zero);
  if (w.offload.activations && (w.pp > 1 || w.recompute != Recompute::kNone))
    return InvalidArgument("--emit megatron: it offloads activations without a pipeline and recomputation alone");
  std::string text = fmt::format("--tensor-model-parallel-size {}\n--pipeline-model-parallel-size {}\n", w.tp, w.pp);
  if (w.chunks > 1) text += fmt::format("--num-layers-per-virtual-pipeline-stage {}\n", w.layers / w.pp / w.chunks);
  if (ends.first != ends.middle) text += fmt::format("--decoder-first-pipeline-num-layers {}\n", ends.first);
  if (ends.last != ends.middle) text += fmt::format("--decoder-last-pipeline-num-layers {}\n", ends.last);
  if (w.offload.optimizer)
    text += "--optimizer-cpu-offload\n--optimizer-offload-fraction 1.0\n--use-precision-aware-optimizer\n";
  if (w.offload.activations) text += fmt::format("--cpu-offloading-num-layers {}\n", w.layers - 1);
  if (w.cp > 1) text += fmt::format("--context-parallel-size {}\n", w.cp);
  if (w.ep > 1) text += fmt::format("--expert-model-parallel-size {}\n", w.ep);
  if (w.experts > 0) text += "--moe-token-dispatcher-type alltoall\n";
  if (w.experts > 0 && w.tp > 1) text += "--expert-tensor-parallel-size 1\n";
  if (w.tp > 1 && w.sequence_parallel) text += "--sequence-parallel\n";
  text += MegatronOverlap(w);
  text += fmt::format("--micro-batch-size {}\n--global-batch-size {}\n", w.microbatch, w.global_batch);
  LS_ASSIGN_OR_RETURN(const std::string model, MegatronModel(w));
  text += MegatronRecompute(w) + model + "--bf16\n";
  if (w.keeps.gradient_bytes == 2) text += "--grad-reduce-in-bf16\n";
  text += fmt::format("--attention-backend {}\n", w.flash ? "flash" : "unfused");
  if (w.precision == Precision::kFp8) text += "--fp8-format hybrid\n";
  return text;
}

absl::StatusOr<std::string> Torchtitan(const Workload& w) {
  if (w.schedule != Schedule::k1F1B)
    return InvalidArgument("--emit torchtitan: it has no schedule {}; choose 1f1b", ScheduleName(w.schedule));
  if ((w.zero == 1 || w.zero == 2) && w.Replicas() > 1)
    return InvalidArgument("--emit torchtitan: it shards all (zero 3) or nothing (zero 0), found zero {}", w.zero);
  if (!w.flash) return InvalidArgument("--emit torchtitan: its attention is fused, found it unfused");
  if (w.GatheredColumns() > 0)
    return InvalidArgument(
        "--emit torchtitan: its ranks of tp have whole heads of keys and values, found {} over tp {}", w.kv_heads,
        w.tp);
  if (!w.hides_tensor || !w.hides_data || !w.hides_transfers)
    return InvalidArgument("--emit torchtitan: it has no flag that keeps communication from being hidden");
  LS_RETURN_IF_ERROR(CheckExchange("torchtitan", w));
  LS_ASSIGN_OR_RETURN(const Ends ends, EndsOf("torchtitan", w));
  if (w.offload.any() && w.offload != Offload{true, false, true})
    return InvalidArgument("--emit torchtitan: it offloads weights, gradients and optimizer, or nothing; found {}",
                           OffloadText(w.offload));
  if (w.offload.weights && w.ShardRanks() == 1)
    return InvalidArgument("--emit torchtitan: it offloads what replicas share, but there is one");
  if (w.shard % w.cp != 0)
    return InvalidArgument("--emit torchtitan: all cp {} ranks of a sequence share, found shard {}", w.cp, w.shard);
  const int64_t shared = w.zero == 3 ? w.ShardRanks() / w.cp : 1;  // of dp
  if (shared * w.cp * w.tp % w.ep != 0)
    return InvalidArgument("--emit torchtitan: ep {} must divide the ranks that share weights, cp and tp among them",
                           w.ep);
  if (w.ep > 1 && w.ep % (w.cp * w.tp) != 0)
    return InvalidArgument("--emit torchtitan: ep must be a multiple of cp {} x tp {}, found {}", w.cp, w.tp, w.ep);
  if (w.tp > 1 && !w.sequence_parallel)
    return InvalidArgument("--emit torchtitan: its tensor parallelism splits the sequence too, found seq_parallel 0");
  const int again = RecomputedLayers(w);
  if (!RecomputesAll(w) && again > 0 && again < w.layers / w.pp)
    return InvalidArgument("--emit torchtitan: it computes all layers again or none, found {} of a stage", again);
  const char* recompute = RecomputesAll(w) || again > 0          ? "full"
                          : w.recompute == Recompute::kSelective ? "selective"
                                                                 : "none";
  // Of a pipeline it splits the local batch into microbatches; else it sums gradients over local batches.
  std::string text = fmt::format(
      "[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n{}\n[parallelism]\n"
      "data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\ntensor_parallel_degree = {}\n"
      "context_parallel_degree = {}\npipeline_parallel_degree = {}\n",
      w.pp > 1 ? w.global_batch / w.dp : w.microbatch, w.global_batch, w.sequence,
      w.offload.weights ? "enable_cpu_offload = true\n" : "", w.dp / shared, shared, w.tp, w.cp, w.pp);
  if (w.ep > 1) text += fmt::format("expert_parallel_degree = {}\n", w.ep);
  if (w.pp > 1)
    text += fmt::format(
        "pipeline_parallel_schedule = \"{}\"\npipeline_parallel_microbatch_size = {}\n"
        "pipeline_parallel_layers_per_stage = {}\npipeline_parallel_first_stage_less_layers = {}\n"
        "pipeline_parallel_last_stage_less_layers = {}\n",
        w.chunks > 1 ? "Interleaved1F1B" : "1F1B", w.microbatch, ends.middle / w.chunks, ends.middle - ends.first,
        ends.middle - ends.last);
  text += fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", recompute);
  // Of each layer what its operations pick, not every so-and-so-many-th layer.
  return w.recompute == Recompute::kSelective ? text + "selective_ac_option = \"op\"\n" : text;
}

}  // namespace

std::string_view StackOf(std::string_view framework) { return framework == "megatron" ? "megatron-core" : framework; }

std::string EmitNote(std::string_view framework, const Workload& w) {
  std::string note;
  const auto add = [&](std::string_view what) { note += fmt::format("{}{}", note.empty() ? "" : "; ", what); };
  const std::string_view own = StackOf(framework);
  if (w.stack != own) add(fmt::format("predicted with the habits of --stack {}, not with those of {}", w.stack, own));
  if (framework != "megatron") return note;
  if (w.tp > 1 && !w.sequence_parallel && w.hides_tensor)
    add("the prediction hides communication of tensor parallelism, which --tp-comm-overlap does beside "
        "--sequence-parallel alone");
  if (w.zero == 3)
    add("what --use-torch-fsdp2 asks of other flags was not tried; CUDA_DEVICE_MAX_CONNECTIONS must not be 1 with it");
  return note;
}

absl::Status CheckEmit(std::string_view framework, const Workload& w) {
  const bool is_megatron = framework == "megatron";
  if (!is_megatron && framework != "torchtitan")
    return InvalidArgument("--emit {}: expected megatron or torchtitan", framework);
  if (w.training == Training::kLora)
    return InvalidArgument("--emit {}: these are the flags of full training; it has none for adapters", framework);
  if (w.frozen.layers > 0 || w.frozen.embedding)
    return InvalidArgument("--emit {}: it has no flag for frozen parts; freeze them in its model's code", framework);
  if (is_megatron && !w.causal)
    return InvalidArgument("--emit megatron: these are the flags of decoders, not of vision transformers");
  if (is_megatron && w.precision == Precision::kFp4)
    return InvalidArgument("--emit megatron: fp4 is not one of its precisions here");
  if (!is_megatron && w.precision != Precision::kBf16)
    return InvalidArgument("--emit torchtitan: these are the flags of --precision bf16 alone");
  return absl::OkStatus();
}

absl::StatusOr<std::string> EmitFlags(std::string_view framework, const Workload& workload) {
  LS_RETURN_IF_ERROR(CheckEmit(framework, workload));
  return framework == "megatron" ? Megatron(workload) : Torchtitan(workload);
}

}  // namespace lockstep::plan
