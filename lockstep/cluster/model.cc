#include "lockstep/cluster/model.h"

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::cluster {
namespace {

// Wide enough for any model to come, small enough that no product of three overflows 64 bits.
constexpr int64_t kMost = 1 << 20;

int64_t Linear(int64_t in, int64_t out, bool bias) { return in * out + (bias ? out : 0); }

int64_t NormParameters(const Model& model) { return model.norm == "layernorm" ? 2 * model.hidden : model.hidden; }

int64_t AttentionParameters(const Model& model) {
  const int64_t h = model.hidden, queries = int64_t{model.heads} * model.HeadDim();
  if (const Latent& l = model.latent; l.kv_rank > 0) {
    const int64_t from = l.q_rank > 0 ? l.q_rank : h, down = l.q_rank > 0 ? h * l.q_rank + l.q_rank : 0;
    const int64_t keys = int64_t{model.heads} * (model.HeadDim() - l.rope + l.value_dim);
    return down + from * queries + h * (l.kv_rank + l.rope) + l.kv_rank + l.kv_rank * keys +
           int64_t{model.heads} * l.value_dim * h;
  }
  const int64_t kv = int64_t{model.kv_heads} * model.HeadDim();
  return Linear(h, queries, model.biases) + 2 * Linear(h, kv, model.biases) + Linear(queries, h, model.biases) +
         (model.norms_queries ? 2 * model.HeadDim() : 0);
}

// Up, down and, gated, one more.
int64_t MlpParameters(const Model& model, int64_t width) {
  return (model.gated ? 2 : 1) * Linear(model.hidden, width, model.biases) + Linear(width, model.hidden, model.biases);
}

// All layers: attention, MLP or experts with their router, and a norm before each.
int64_t LayersParameters(const Model& model) {
  const Mixture& moe = model.moe;
  const int64_t mixed = moe.experts > 0 ? model.layers - moe.dense_layers : 0;
  const int64_t experts =
      moe.experts * MlpParameters(model, moe.ffn_hidden) +
      (moe.shared_experts > 0 ? MlpParameters(model, int64_t{moe.shared_experts} * moe.ffn_hidden) : 0) +
      int64_t{model.hidden} * moe.experts;
  return model.layers * (AttentionParameters(model) + 2 * NormParameters(model)) +
         (model.layers - mixed) * MlpParameters(model, model.ffn_hidden) + mixed * (mixed > 0 ? experts : 0);
}

int64_t EmbeddingParameters(const Model& model) {
  if (model.patch == 0) return int64_t{model.vocabulary} * model.hidden;
  return Linear(int64_t{3} * model.patch * model.patch, model.hidden, true) + model.hidden;
}

void ReadMixture(TableReader& in, Mixture& moe) {
  in.Require({"experts", "top_k", "ffn_hidden"});
  const IntegerRange size{.least = 1, .most = kMost}, count{.least = 0, .most = kMost};
  in.Integer("experts", size, moe.experts);
  in.Integer("top_k", size, moe.top_k);
  in.Integer("ffn_hidden", size, moe.ffn_hidden);
  in.Integer("shared_experts", count, moe.shared_experts);
  in.Integer("dense_layers", count, moe.dense_layers);
  if (moe.top_k > moe.experts)
    in.Fail("top_k", fmt::format("top_k must be at most the {} experts, found {}", moe.experts, moe.top_k));
}

void ReadLatent(TableReader& in, Latent& latent) {
  in.Require({"kv_rank", "rope", "value_dim"});
  const IntegerRange size{.least = 1, .most = kMost};
  in.Integer("q_rank", size, latent.q_rank);
  in.Integer("kv_rank", size, latent.kv_rank);
  in.Integer("rope", size, latent.rope);
  in.Integer("value_dim", size, latent.value_dim);
}

}  // namespace

absl::Status Model::Validate() const {
  if (head_dim == 0 && hidden % heads != 0)
    return InvalidArgument("heads must divide hidden, found {} heads for hidden {}", heads, hidden);
  if (heads % kv_heads != 0)
    return InvalidArgument("kv_heads must divide heads, found {} for {} heads", kv_heads, heads);
  if (moe.dense_layers >= layers && moe.experts > 0)
    return InvalidArgument("moe.dense_layers must be fewer than the {} layers, found {}", layers, moe.dense_layers);
  if (latent.kv_rank > 0 && HeadDim() <= latent.rope)
    return InvalidArgument("head_dim must be more than latent.rope, found {} and {}", HeadDim(), latent.rope);
  return absl::OkStatus();
}

int64_t Model::Parameters() const {
  const int64_t positions = learned_positions ? int64_t{context} * hidden : 0;
  const int64_t head = tied_embeddings ? 0 : Linear(hidden, vocabulary, biases);
  return EmbeddingParameters(*this) + positions + LayersParameters(*this) + NormParameters(*this) + head;
}

absl::StatusOr<Model> ParseModel(std::string_view text, const std::string& file) {
  LS_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  Model model;
  TableReader in(root, file);
  in.Require({"name", "layers", "hidden", "ffn_hidden", "heads", "vocabulary", "context"});
  in.Text("name", model.name);
  const IntegerRange size{.least = 1, .most = kMost};
  in.Integer("layers", size, model.layers);
  in.Integer("hidden", size, model.hidden);
  in.Integer("ffn_hidden", size, model.ffn_hidden);
  in.Integer("heads", size, model.heads);
  model.kv_heads = model.heads;
  in.Integer("kv_heads", size, model.kv_heads);
  in.Integer("head_dim", size, model.head_dim);
  in.Integer("vocabulary", size, model.vocabulary);
  in.Integer("context", {.least = 1, .most = int64_t{1} << 30}, model.context);
  in.Integer("patch", size, model.patch);
  in.Boolean("gated", model.gated);
  in.Boolean("biases", model.biases);
  in.Boolean("learned_positions", model.learned_positions);
  in.Boolean("tied_embeddings", model.tied_embeddings);
  in.Boolean("norms_queries", model.norms_queries);
  in.OneOf("norm", {"rmsnorm", "layernorm"}, model.norm);
  in.Table("moe", [&](TableReader& moe) { ReadMixture(moe, model.moe); });
  in.Table("latent", [&](TableReader& latent) { ReadLatent(latent, model.latent); });
  in.Check(model.Validate());
  LS_RETURN_IF_ERROR(in.Finish());
  return model;
}

absl::StatusOr<Model> ReadModel(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseModel(text, path);
}

}  // namespace lockstep::cluster
