#include "lockstep/plan/model_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_at.h"
#include "lockstep/cluster/model.h"

namespace lockstep::plan {
namespace {

// The first of these keys that is there; 0: none.
int Size(const Json& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const int64_t value = IntegerAt(config, key, 0); value > 0 && value < 1'000'000'000) return int(value);
  return 0;
}

void TakeLatent(const Json& config, Workload& w) {
  w.latent = {Size(config, {"q_lora_rank"}), Size(config, {"kv_lora_rank"}), Size(config, {"qk_rope_head_dim"}),
              Size(config, {"v_head_dim"})};
  if (w.latent.kv_rank > 0) w.head_dim = Size(config, {"qk_nope_head_dim"}) + w.latent.rope;
}

// A token for each patch of the image, and one for the class; each sees all others.
void TakeVision(const Json& config, Workload& w) {
  const int image = Size(config, {"image_size"}), patch = Size(config, {"patch_size"});
  w.causal = false;
  if (w.vocabulary == 0) w.vocabulary = std::max(1000, Size(config, {"num_labels"}));
  if (w.sequence == 0 && image > 0 && patch > 0) w.sequence = (image / patch) * (image / patch) + 1;
}

}  // namespace

absl::Status TakeHuggingFace(std::string_view text, const std::string& path, Workload& w) {
  const Json config = Json::parse(text.begin(), text.end(), nullptr, false);
  if (!config.is_object()) return InvalidArgument("{}: it is no JSON object", path);
  w.hidden = Size(config, {"hidden_size", "n_embd", "d_model"});
  w.layers = Size(config, {"num_hidden_layers", "n_layer", "n_layers"});
  w.heads = Size(config, {"num_attention_heads", "n_head", "n_heads"});
  w.kv_heads = Size(config, {"num_key_value_heads"});
  w.head_dim = Size(config, {"head_dim"});
  w.ffn = Size(config, {"intermediate_size", "n_inner"});
  w.vocabulary = Size(config, {"vocab_size"});
  w.experts = Size(config, {"num_local_experts", "n_routed_experts", "num_experts"});
  w.top_k = Size(config, {"num_experts_per_tok"});
  w.expert_ffn = Size(config, {"moe_intermediate_size"});
  w.dense_layers = w.experts > 0 ? Size(config, {"first_k_dense_replace"}) : 0;
  w.shared_experts = w.experts > 0 ? Size(config, {"n_shared_experts"}) : 0;
  TakeLatent(config, w);
  if (TextAt(config, "model_type") == "vit") TakeVision(config, w);
  // An MLP of two matrices is that of GPT-2 and its like, whose keys are others.
  w.gated = !config.contains("n_embd") && TextAt(config, "hidden_act") != "gelu";
  if (w.ffn == 0) w.ffn = 4 * w.hidden;
  if (w.kv_heads == 0) w.kv_heads = w.heads;
  if (w.head_dim == 0 && w.heads > 0) w.head_dim = w.hidden / w.heads;
  if (w.experts > 0 && w.expert_ffn == 0) w.expert_ffn = w.ffn;
  if (w.experts > 0 && w.top_k == 0)
    return InvalidArgument("{}: {} experts, but no num_experts_per_tok", path, w.experts);
  if (w.latent.kv_rank > 0 && (w.latent.value_dim == 0 || w.head_dim == w.latent.rope))
    return InvalidArgument("{}: latent attention needs qk_nope_head_dim, qk_rope_head_dim and v_head_dim", path);
  const std::pair<const char*, int> needed[] = {{"hidden_size", w.hidden},
                                                {"num_hidden_layers", w.layers},
                                                {"num_attention_heads", w.heads},
                                                {"vocab_size", w.vocabulary}};
  for (const auto& [key, value] : needed)
    if (value == 0) return InvalidArgument("{}: \"{}\" is missing, or no number above 0", path, key);
  return absl::OkStatus();
}

absl::Status TakeModel(const std::string& name, const cluster::Presets& presets, Workload& w) {
  if (name.ends_with(".json")) {
    LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(name));
    return TakeHuggingFace(text, name, w);
  }
  LS_ASSIGN_OR_RETURN(const std::string path, presets.Find("models", name, "."));
  LS_ASSIGN_OR_RETURN(const cluster::Model model, cluster::ReadModel(path));
  w.layers = model.layers;
  w.hidden = model.hidden;
  w.ffn = model.ffn_hidden;
  w.heads = model.heads;
  w.kv_heads = model.kv_heads;
  w.head_dim = model.HeadDim();
  w.vocabulary = model.vocabulary;
  w.gated = model.gated;
  w.causal = model.patch == 0;  // patches of an image see all others
  w.experts = model.moe.experts;
  w.top_k = model.moe.top_k;
  w.expert_ffn = model.moe.ffn_hidden;
  w.shared_experts = model.moe.shared_experts;
  w.dense_layers = model.moe.dense_layers;
  w.latent = model.latent;
  if (w.sequence == 0) w.sequence = model.context;
  return absl::OkStatus();
}

}  // namespace lockstep::plan
