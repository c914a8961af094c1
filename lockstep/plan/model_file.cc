#include "lockstep/plan/model_file.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/base/file.h"
#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/cluster/model.h"

namespace lockstep::plan {
namespace {

// What the usual keys say all of. Any other is read by them, too, but with a note.
constexpr const char* kKnown[] = {
    "llama",      "llama4_text", "mistral",     "mixtral",          "qwen",        "qwen2",      "qwen2_moe",
    "qwen3",      "qwen3_moe",   "deepseek_v2", "deepseek_v3",      "kimi_k2",     "dots1",      "glm",
    "glm4",       "glm4_moe",    "gemma",       "gemma2",           "gemma3_text", "phi",        "phi3",
    "phimoe",     "gpt2",        "gptj",        "gpt_neox",         "gpt_bigcode", "gpt_oss",    "opt",
    "bloom",      "falcon",      "mpt",         "starcoder2",       "cohere",      "cohere2",    "nemotron",
    "olmo",       "olmo2",       "olmoe",       "stablelm",         "granite",     "granitemoe", "baichuan",
    "minimax_m2", "seed_oss",    "bailing_moe", "hunyuan_v1_dense", "ernie4_5",    "smollm3",    "internlm2",
    "vit"};
// Encoders; what has no attention, or experts in it.
constexpr const char* kOthers[] = {
    "t5",       "mt5",     "bart",      "mbart",       "pegasus",    "marian",     "bert",        "nomic_bert",
    "albert",   "roberta", "camembert", "xlm-roberta", "distilbert", "modernbert", "deberta",     "deberta-v2",
    "electra",  "mpnet",   "esm",       "longformer",  "big_bird",   "clip",       "siglip",      "whisper",
    "wav2vec2", "hubert",  "mamba",     "mamba2",      "rwkv",       "jetmoe",     "falcon_mamba"};
// Keys begin so where some layers have no attention, or one that is linear or takes in some tokens alone.
constexpr const char* kOtherAttention[] = {"mamba_",      "linear_key_",       "linear_attn_", "attn_type_list",
                                           "block_types", "layers_block_type", "index_topk",   "conv_L_cache"};
// And so where experts are called otherwise than here.
constexpr const char* kOtherExperts[] = {"moe_num_", "moe_k", "moe_topk", "ffn_config"};
// Of those, whose MLP has two matrices; all others' is gated, whatever the activation.
constexpr const char* kPlain[] = {"gpt2",   "gptj", "gpt_neox", "gpt_bigcode", "opt",      "bloom",
                                  "falcon", "mpt",  "phi",      "starcoder2",  "nemotron", "vit"};
// Whose MLP is four times as wide as the model unless they say so.
constexpr const char* kOldModels[] = {"gpt2", "gptj", "gpt_bigcode", "bloom", "falcon", "mpt"};
// Whose output layer is the embedding unless they say otherwise.
constexpr const char* kTied[] = {"gpt2",       "gpt_bigcode", "bloom",   "falcon",   "mpt",
                                 "opt",        "gemma",       "gemma2",  "gemma3",   "gemma3_text",
                                 "starcoder2", "cohere",      "cohere2", "ernie4_5", "smollm3"};

constexpr int64_t kMostSize = 1'000'000'000;

// Sizes of a config.json: a key that is there, but no whole number, or below 0, is an error.
class Sizes {
 public:
  explicit Sizes(const Json& config) : config_(config) {}
  // The first of these keys that has one; 0: none.
  int operator()(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      const Json& found = At(config_, key);
      const int64_t value = IntegerAt(config_, key, 0);
      if (value > 0 && value < kMostSize) return static_cast<int>(value);
      if (!found.is_null() && found != 0 && wrong_.empty())
        wrong_ = fmt::format("\"{}\" is {}; expected a whole number above 0", key, OneLine(found));
    }
    return 0;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const Json& config_;
  std::string wrong_;
};

bool IsAmong(std::span<const char* const> names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

bool IsOld(const Json& config) {
  return config.contains("n_embd") || IsAmong(kOldModels, TextAt(config, "model_type"));
}

bool IsUnknownOld(const Json& config, const std::string& type) {
  return config.contains("n_embd") && !IsAmong(kKnown, type);
}

// Of a type that nobody has held against its code by what it is gated by; none is said where it is silu.
bool IsGated(const Json& config, const std::string& type) {
  if (IsAmong(kKnown, type)) return !IsAmong(kPlain, type);
  if (IsUnknownOld(config, type)) return false;
  std::string by;
  for (const char* key : {"hidden_act", "activation_function", "hidden_activation"})
    if (by.empty()) by = absl::AsciiStrToLower(TextAt(config, key));
  const auto has = [&](const char* part) { return by.find(part) != std::string::npos; };
  return by.empty() || has("silu") || has("swi") || has("glu") || type.starts_with("gemma");
}

bool IsTied(const Json& config, const std::string& type) {
  return BooleanAt(config, "tie_word_embeddings", IsAmong(kTied, type) || IsUnknownOld(config, type));
}

void TakeExperts(Sizes& size, Workload& w) {
  w.experts = size({"num_local_experts", "n_routed_experts", "num_experts"});
  w.top_k = size({"num_experts_per_tok"});
  w.expert_ffn = size({"moe_intermediate_size"});
  w.dense_layers = w.shared_experts = 0, w.experts_every = 1;
  if (w.experts == 0) return;
  w.dense_layers = size({"first_k_dense_replace"});
  w.experts_every = std::max(1, size({"decoder_sparse_step", "interleave_moe_layer_step"}));
  w.shared_experts = size({"n_shared_experts", "num_shared_experts"});
  const int shared = size({"shared_expert_intermediate_size"});  // of all that are shared
  if (shared > 0 && w.expert_ffn > 0) w.shared_experts = (shared + w.expert_ffn / 2) / w.expert_ffn;
}

// Of Llama 4 the size is that of an expert; each token goes to one more, which is shared.
void TakeLlama4(Sizes& size, Workload& w) {
  w.expert_ffn = w.ffn, w.shared_experts = 1;
  if (const int dense = size({"intermediate_size_mlp"}); dense > 0) w.ffn = dense;
}

// Layers with a window, of a list of the kind of each. A chunk that holds the whole sequence is no restriction.
absl::StatusOr<int> ListedWindows(const Json& kinds, int chunk, const std::string& path, const Workload& w) {
  if (std::cmp_not_equal(kinds.size(), w.layers))
    return InvalidArgument("{}: \"layer_types\" has {} entries for {} layers", path, kinds.size(), w.layers);
  int windowed = 0;
  for (const Json& kind : kinds) {
    const bool is_chunked = kind == "chunked_attention";
    if (kind == "sliding_attention")
      ++windowed;
    else if (is_chunked && w.sequence > chunk)
      return InvalidArgument("{}: attention in chunks of {}, fewer than the sequence of {} tokens, is not known here",
                             path, chunk, w.sequence);
    else if (kind != "full_attention" && !is_chunked)
      return InvalidArgument("{}: \"layer_types\" has {}; known here are full_attention and sliding_attention", path,
                             OneLine(kind));
  }
  return windowed;
}

// The same by the habits of a kind of model: all of them, all but every so-and-so-many-th, those from one on.
int UsualWindows(const std::string& type, Sizes& size, const Workload& w) {
  int pattern = size({"sliding_window_pattern", "_sliding_window_pattern"});
  if (pattern == 0 && type == "gemma2") pattern = 2;
  if (pattern == 0 && type.starts_with("gemma3")) pattern = 6;
  if (pattern > 0) return w.layers - w.layers / pattern;
  return type.starts_with("qwen") ? std::max(0, w.layers - size({"max_window_layers"})) : w.layers;
}

absl::Status TakeWindow(const Json& config, const std::string& path, Sizes& size, Workload& w) {
  w.window = {};
  const std::string type = TextAt(config, "model_type");
  const Json& kinds = At(config, "layer_types");
  const int tokens = BooleanAt(config, "use_sliding_window", !type.starts_with("qwen")) ? size({"sliding_window"}) : 0;
  const int chunk = size({"attention_chunk_size"});
  if (kinds.is_array()) {
    LS_ASSIGN_OR_RETURN(w.window.layers, ListedWindows(kinds, chunk, path, w));
  } else if (chunk > 0) {
    LS_RETURN_IF_ERROR(ListedWindows(Json(size_t(w.layers), "chunked_attention"), chunk, path, w).status());
  } else if (tokens > 0) {
    w.window.layers = UsualWindows(type, size, w);
  }
  if (w.window.layers == 0) return absl::OkStatus();
  w.window.tokens = tokens;
  if (tokens > 0) return absl::OkStatus();
  return InvalidArgument("{}: \"layer_types\" has sliding_attention, but there is no \"sliding_window\"{}", path,
                         size({"sliding_window"}) > 0 ? " in use (\"use_sliding_window\")" : "");
}

void TakeLatent(Sizes& size, Workload& w) {
  w.latent = {size({"q_lora_rank"}), size({"kv_lora_rank"}), size({"qk_rope_head_dim"}), size({"v_head_dim"})};
  if (w.latent.kv_rank > 0) w.head_dim = size({"qk_nope_head_dim"}) + w.latent.rope;
}

// MPT's attention has a table of its own; its MLP is so many times as wide as the model.
absl::Status TakeMpt(const Json& config, const std::string& path, Sizes& size, Workload& w) {
  const Json& attention = At(config, "attn_config");
  const Json& kind = At(attention, "attn_type");
  if (!attention.is_null() && !attention.is_object())
    return InvalidArgument("{}: \"attn_config\" is {}; expected an object", path, OneLine(attention));
  Sizes own(attention);
  if (kind == "multiquery_attention") {
    w.kv_heads = 1;
  } else if (kind == "grouped_query_attention") {
    w.kv_heads = own({"kv_n_heads"});
    if (own.wrong().empty() && w.kv_heads == 0)
      return InvalidArgument("{}: attn_config: \"attn_type\" is {}, but there is no \"kv_n_heads\"", path,
                             OneLine(kind));
  } else if (!kind.is_null() && kind != "multihead_attention") {
    return InvalidArgument(
        "{}: attn_config: \"attn_type\" is {}; expected multihead_attention, multiquery_attention or "
        "grouped_query_attention",
        path, OneLine(kind));
  }
  if (!own.wrong().empty()) return InvalidArgument("{}: attn_config: {}", path, own.wrong());
  if (const Json& window = At(attention, "sliding_window_size"); !window.is_null() && window != -1)
    return InvalidArgument("{}: attn_config: \"sliding_window_size\" is {}, of which nothing is known here", path,
                           OneLine(window));
  const int64_t width = int64_t{w.hidden} * size({"expansion_ratio"});
  if (width >= kMostSize) return InvalidArgument("{}: \"expansion_ratio\" makes an MLP {} wide", path, width);
  if (width > 0) w.ffn = static_cast<int>(width);
  return absl::OkStatus();
}

constexpr int64_t kMostAcross = 1 << 14;

// A token for each patch of the image, and one for the class; each sees all others.
void TakeVision(Sizes& size, Workload& w) {
  const int image = size({"image_size"}), patch = size({"patch_size"});
  w.causal = false;
  if (w.vocabulary == 0) w.vocabulary = std::max(1000, size({"num_labels"}));
  if (w.sequence > 0 || image == 0 || patch == 0) return;
  const int64_t across = image / patch;
  if (across < kMostAcross) w.sequence = static_cast<int>(across * across + 1);
}

// Whether these are the layers without experts, or with them, that first_k_dense_replace and the others say.
bool AreAsCounted(std::string_view key, const Json& listed, const Workload& w) {
  if (listed.empty()) return true;
  if (key == "mlp_only_layers") return false;
  Json expected = Json::array();
  for (int layer = 0; layer < w.layers; ++layer)
    if (w.MixedBelow(layer + 1) > w.MixedBelow(layer)) expected.push_back(layer);
  return listed == expected;
}

// Of layers that all have whole attention.
bool AreAllWhole(const std::string& key, const Json& list) {
  const Json whole = key == "attn_type_list" ? Json(1) : Json("attention");
  return (key == "attn_type_list" || key == "layers_block_type") && list.is_array() &&
         std::ranges::all_of(list, [&](const Json& one) { return one == whole; });
}

// Parts that no figure here is of.
absl::Status CheckParts(const Json& config, const std::string& path) {
  for (const char* key : {"text_config", "vision_config", "audio_config"}) {
    if (!At(config, key).is_object()) continue;
    if (!config.contains("hidden_size") && At(config, "text_config").is_object())
      return InvalidArgument(
          "{}: a decoder (text_config) beside encoders, which are not known here: save its text_config as a "
          "config.json of its own to plan that alone",
          path);
    if (!config.contains("hidden_size"))
      return InvalidArgument(
          "{}: it has \"{}\", but encoders are not known here, and it has no hidden_size or text_config of a decoder",
          path, key);
    return InvalidArgument(
        "{}: it has \"{}\", but a decoder beside encoders is not known here: take that out to plan the decoder alone",
        path, key);
  }
  const auto unknown = [&](const char* key) {
    return InvalidArgument(
        "{}: \"{}\" is {}, of which nothing is known here; describe the model in a .toml (docs/formats/job.md)", path,
        key, OneLine(At(config, key)));
  };
  for (const char* key :
       {"parallel_attn_mlp_res", "shared_intermediate_size", "num_hidden_groups", "type_vocab_size", "encoder_layers",
        "is_encoder_decoder", "add_cross_attention", "use_cla", "num_kv_shared_layers", "hidden_size_per_layer_input"})
    if (const Json& value = At(config, key); !value.is_null() && value != false && value != 0) return unknown(key);
  const Json& embedded = At(config, "word_embed_proj_dim");
  if (!embedded.is_null() && embedded != At(config, "hidden_size")) return unknown("word_embed_proj_dim");
  return absl::OkStatus();
}

// What would make another model of it, if it were passed over.
absl::Status CheckKeys(const Json& config, const std::string& path) {
  LS_RETURN_IF_ERROR(CheckParts(config, path));
  for (const auto& [key, value] : config.items()) {
    const auto begins = [&](const char* begin) { return key.starts_with(begin); };
    if (std::ranges::any_of(kOtherAttention, begins) && !value.is_null() && !AreAllWhole(key, value))
      return InvalidArgument(
          "{}: it has \"{}\", but layers whose attention is linear or sparse, or that have none, are not known here",
          path, key);
    if (std::ranges::any_of(kOtherExperts, begins) && !value.is_null())
      return InvalidArgument(
          "{}: it has \"{}\", but experts are known here by num_experts or num_local_experts, num_experts_per_tok and "
          "moe_intermediate_size",
          path, key);
  }
  const auto check = [&](std::initializer_list<const char*> keys, auto is, const char* expected) {
    for (const char* key : keys)
      if (const Json& value = At(config, key); !value.is_null() && !(value.*is)())
        return InvalidArgument("{}: \"{}\" is {}; expected {}", path, key, OneLine(value), expected);
    return absl::OkStatus();
  };
  LS_RETURN_IF_ERROR(check({"tie_word_embeddings", "use_sliding_window", "multi_query", "new_decoder_architecture"},
                           &Json::is_boolean, "true or false"));
  LS_RETURN_IF_ERROR(
      check({"model_type", "hidden_act", "activation_function", "hidden_activation"}, &Json::is_string, "a text"));
  return check({"layer_types"}, &Json::is_array, "a list, of the kind of each layer");
}

absl::Status CheckModel(const Json& config, const std::string& path, const Workload& w) {
  if (w.experts > 0 && w.top_k == 0)
    return InvalidArgument("{}: {} experts, but no num_experts_per_tok", path, w.experts);
  if (const Json& step = At(config, "moe_layer_freq"); w.experts > 0 && !step.is_null() && step != 1)
    return InvalidArgument("{}: moe_layer_freq is {}; known here is 1, and decoder_sparse_step", path, OneLine(step));
  for (const char* key : {"mlp_only_layers", "moe_layers"})
    if (const Json& listed = At(config, key); w.experts > 0 && listed.is_array() && !AreAsCounted(key, listed, w))
      return InvalidArgument("{}: \"{}\" is {}: known here are experts in each so-and-so-many-th layer", path, key,
                             OneLine(listed));
  if (w.latent.kv_rank > 0 && (w.latent.value_dim == 0 || w.head_dim == w.latent.rope))
    return InvalidArgument("{}: latent attention needs qk_nope_head_dim, qk_rope_head_dim and v_head_dim", path);
  const std::pair<const char*, int> needed[] = {{"hidden_size", w.hidden},
                                                {"num_hidden_layers", w.layers},
                                                {"num_attention_heads", w.heads},
                                                {"vocab_size", w.vocabulary},
                                                {"intermediate_size", w.ffn}};
  for (const auto& [key, value] : needed)
    if (value == 0) return InvalidArgument("{}: \"{}\" is missing, or no number above 0", path, key);
  if (w.head_dim == 0 && w.hidden % w.heads != 0)
    return InvalidArgument("{}: {} heads must divide hidden_size {}, for there is no \"head_dim\"", path, w.heads,
                           w.hidden);
  return absl::OkStatus();
}

// Layers beside the model, that predict further tokens.
std::string FurtherNote(const Json& config, const std::string& path) {
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_modules"})
    if (const int64_t layers = IntegerAt(config, key, 0); layers > 0)
      return fmt::format("{}: \"{}\" is {}: layers that predict further tokens are not counted", path, key, layers);
  return "";
}

// Of a model that nobody has held against the usual keys.
std::string UnknownNote(const std::string& type, const std::string& path, const Workload& w) {
  if (IsAmong(kKnown, type)) return "";
  const double embeddings = double(w.vocabulary) * w.hidden * (w.tied_embeddings ? 1 : 2);
  return fmt::format(
      "{}: {}: read as a decoder by the usual keys, which make {:.4g} billion parameters; hold that against what is "
      "published",
      path, type.empty() ? "there is no model_type" : fmt::format("model_type {} is not known here", type),
      (w.LayersParameters() + embeddings) / 1e9);
}

}  // namespace

absl::Status TakeHuggingFace(std::string_view text, const std::string& path, Workload& w, std::string* note) {
  const absl::StatusOr<Json> read = ReadJson(text);
  if (!read.ok()) return InvalidArgument("{}: it is no JSON object: {}", path, Message(read.status()));
  const Json& config = *read;
  if (!config.is_object()) return InvalidArgument("{}: it is no JSON object", path);
  const std::string type = TextAt(config, "model_type");
  if (IsAmong(kOthers, type))
    return InvalidArgument("{}: model_type {} is no decoder of the kind known here, and no vision transformer", path,
                           type);
  LS_RETURN_IF_ERROR(CheckKeys(config, path));
  Sizes size(config);
  w.hidden = size({"hidden_size", "n_embd", "n_embed", "d_model"});
  w.layers = size({"num_hidden_layers", "n_layer", "n_layers"});
  w.heads = size({"num_attention_heads", "n_head", "n_heads"});
  w.kv_heads = size({"num_key_value_heads", "num_kv_heads"});
  if (BooleanAt(config, "multi_query", false) && !BooleanAt(config, "new_decoder_architecture", false)) w.kv_heads = 1;
  w.head_dim = size({"head_dim"});
  w.ffn = size({"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"});
  if (type == "qwen") w.ffn /= 2;  // of both halves of a gated MLP
  w.vocabulary = size({"vocab_size"});
  w.gated = IsGated(config, type);
  w.tied_embeddings = IsTied(config, type);
  TakeExperts(size, w);
  TakeLatent(size, w);
  if (type == "vit") TakeVision(size, w);
  if (w.sequence == 0) w.sequence = size({"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"});
  if (type == "mpt") LS_RETURN_IF_ERROR(TakeMpt(config, path, size, w));
  LS_RETURN_IF_ERROR(TakeWindow(config, path, size, w));
  if (!size.wrong().empty()) return InvalidArgument("{}: {}", path, size.wrong());
  if (w.ffn == 0 && IsOld(config)) w.ffn = 4 * w.hidden;
  if (w.kv_heads == 0) w.kv_heads = w.heads;
  if (type == "llama4_text" && w.experts > 0) TakeLlama4(size, w);
  if (w.experts > 0 && w.expert_ffn == 0) w.expert_ffn = w.ffn;
  if (w.experts > 0 && w.ffn == 0) w.ffn = w.expert_ffn;
  LS_RETURN_IF_ERROR(CheckModel(config, path, w));
  if (w.head_dim == 0) w.head_dim = w.hidden / w.heads;
  if (note == nullptr) return absl::OkStatus();
  const std::string unknown = UnknownNote(type, path, w), further = FurtherNote(config, path);
  *note = unknown + (unknown.empty() || further.empty() ? "" : "; ") + further;
  return absl::OkStatus();
}

absl::Status TakeModel(const std::string& name, const cluster::Presets& presets, Workload& w, std::string* note) {
  if (name.ends_with(".json")) {
    LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(name));
    return TakeHuggingFace(text, name, w, note);
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
  w.tied_embeddings = model.tied_embeddings;
  w.causal = model.patch == 0;  // patches of an image see all others
  w.experts = model.moe.experts;
  w.top_k = model.moe.top_k;
  w.expert_ffn = model.moe.ffn_hidden;
  w.shared_experts = model.moe.shared_experts;
  w.dense_layers = model.moe.dense_layers;
  w.experts_every = model.moe.every;
  w.window = model.window;
  w.latent = model.latent;
  if (w.sequence == 0) w.sequence = model.context;
  return absl::OkStatus();
}

}  // namespace lockstep::plan
