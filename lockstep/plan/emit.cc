#include "lockstep/plan/emit.h"

#include "lockstep/plan/memory.h"
#include "lockstep/plan/schedule.h"

namespace lockstep::plan {
namespace {

// Layers of a stage that are computed again; frameworks take whole ones.
int RecomputedLayers(const Workload& w) {
  const double layers = double(w.layers) / w.pp / w.chunks;
  return static_cast<int>(RecomputedShare(w) * layers + .999);
}

std::string MegatronRecompute(const Workload& w) {
  if (w.recompute == Recompute::kSelective) return "--recompute-granularity selective\n";
  if (w.recompute == Recompute::kFull)
    return "--recompute-granularity full\n--recompute-method uniform\n--recompute-num-layers 1\n";
  if (RecomputedLayers(w) == 0) return "";
  return fmt::format("--recompute-granularity full\n--recompute-method block\n--recompute-num-layers {}\n",
                     RecomputedLayers(w));
}

std::string MegatronModel(const Workload& w) {
  std::string text = fmt::format("--num-layers {}\n--hidden-size {}\n--ffn-hidden-size {}\n--num-attention-heads {}\n",
                                 w.layers, w.hidden, w.ffn, w.heads);
  if (w.kv_heads != w.heads) text += fmt::format("--group-query-attention\n--num-query-groups {}\n", w.kv_heads);
  if (w.head_dim * w.heads != w.hidden) text += fmt::format("--kv-channels {}\n", w.head_dim);
  if (w.gated) text += "--swiglu\n";
  if (w.experts > 0)
    text += fmt::format("--num-experts {}\n--moe-router-topk {}\n--moe-ffn-hidden-size {}\n", w.experts, w.top_k,
                        w.expert_ffn);
  return text + fmt::format("--seq-length {}\n--max-position-embeddings {}\n", w.sequence, w.sequence);
}

absl::StatusOr<std::string> Megatron(const Workload& w) {
  if (w.schedule != Schedule::k1F1B)
    return InvalidArgument("--emit megatron: it has no schedule {}; choose 1f1b", ScheduleName(w.schedule));
  if (w.zero == 2) return InvalidArgument("--emit megatron: it has zero 0, 1 and 3, found 2");
  if (!w.stage_layers.empty())
    return InvalidArgument("--emit megatron: stages that differ have no flag of their own; choose a pp that divides {}",
                           w.layers);
  std::string text = fmt::format("--tensor-model-parallel-size {}\n--pipeline-model-parallel-size {}\n", w.tp, w.pp);
  if (w.chunks > 1) text += fmt::format("--num-layers-per-virtual-pipeline-stage {}\n", w.layers / w.pp / w.chunks);
  if (w.cp > 1) text += fmt::format("--context-parallel-size {}\n", w.cp);
  if (w.ep > 1) text += fmt::format("--expert-model-parallel-size {}\n", w.ep);
  if (w.tp > 1 && w.sequence_parallel) text += "--sequence-parallel\n";
  if (w.zero == 1) text += "--use-distributed-optimizer\n--overlap-grad-reduce\n--overlap-param-gather\n";
  if (w.zero == 3) text += "--use-torch-fsdp2\n";
  text += fmt::format("--micro-batch-size {}\n--global-batch-size {}\n", w.microbatch, w.global_batch);
  text += MegatronRecompute(w) + MegatronModel(w) + "--bf16\n";
  if (w.flash) text += "--attention-backend flash\n";
  if (w.precision == Precision::kFp8) text += "--fp8-format hybrid\n";
  if (w.precision == Precision::kFp4) return InvalidArgument("--emit megatron: fp4 is not one of its precisions here");
  return text;
}

absl::StatusOr<std::string> Torchtitan(const Workload& w) {
  if (w.schedule != Schedule::k1F1B)
    return InvalidArgument("--emit torchtitan: it has no schedule {}; choose 1f1b", ScheduleName(w.schedule));
  if (w.zero == 1 || w.zero == 2)
    return InvalidArgument("--emit torchtitan: it shards all (zero 3) or nothing (zero 0), found zero {}", w.zero);
  const bool shards = w.zero == 3;
  const char* recompute = w.recompute == Recompute::kFull || RecomputedLayers(w) > 0 ? "full"
                          : w.recompute == Recompute::kSelective                     ? "selective"
                                                                                     : "none";
  std::string text = fmt::format(
      "[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n\n[parallelism]\n"
      "data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\ntensor_parallel_degree = {}\n"
      "context_parallel_degree = {}\npipeline_parallel_degree = {}\n",
      w.global_batch / w.dp, w.global_batch, w.sequence, shards ? 1 : w.dp, shards ? w.dp : 1, w.tp, w.cp, w.pp);
  if (w.ep > 1) text += fmt::format("expert_parallel_degree = {}\n", w.ep);
  if (w.pp > 1)
    text += fmt::format(
        "pipeline_parallel_schedule = \"{}\"\npipeline_parallel_microbatch_size = {}\n"
        "pipeline_parallel_layers_per_stage = {}\n",
        w.chunks > 1 ? "Interleaved1F1B" : "1F1B", w.microbatch, w.layers / w.pp / w.chunks);
  return text + fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", recompute);
}

}  // namespace

absl::StatusOr<std::string> EmitFlags(std::string_view framework, const Workload& workload) {
  if (framework == "megatron") return Megatron(workload);
  if (framework == "torchtitan") return Torchtitan(workload);
  return InvalidArgument("--emit {}: expected megatron or torchtitan", framework);
}

}  // namespace lockstep::plan
