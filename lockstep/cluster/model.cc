#include "lockstep/cluster/model.h"

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::cluster {
namespace {

constexpr int64_t kMost = 1 << 20;        // of a size
constexpr double kMostParameters = 1e18;  // so that an exact count fits into 64 bits

// Parameters: exact as an int64_t, as a double of any model.
template <typename T>
class Count {
 public:
  explicit Count(const Model& model) : m_(model), hidden_(T(model.hidden)) {}

  T All() const {
    const T positions = m_.learned_positions ? T(m_.context) * hidden_ : 0;
    const T head = m_.tied_embeddings ? 0 : Linear(hidden_, T(m_.vocabulary));
    const T mixed = m_.moe.experts > 0 ? T((m_.layers - m_.moe.dense_layers) / m_.moe.every) : 0;
    return Embedding() + positions + T(m_.layers) * (Attention() + 2 * Norm()) +
           (T(m_.layers) - mixed) * Mlp(T(m_.ffn_hidden)) + mixed * Experts() + Norm() + head;
  }

 private:
  T Linear(T in, T out) const { return in * out + (m_.biases ? out : 0); }
  T Norm() const { return m_.norm == "layernorm" ? 2 * hidden_ : hidden_; }

  T Attention() const {
    const T heads = T(m_.heads), dim = T(m_.HeadDim());
    if (m_.latent.kv_rank > 0) return LatentAttention(heads, dim);
    return Linear(hidden_, heads * dim) + 2 * Linear(hidden_, T(m_.kv_heads) * dim) + Linear(heads * dim, hidden_) +
           (m_.norms_queries ? 2 * dim : 0) + (m_.sinks ? heads : 0);
  }
  // Narrow vectors have a norm.
  T LatentAttention(T heads, T dim) const {
    const T q_rank = T(m_.latent.q_rank), kv_rank = T(m_.latent.kv_rank), rope = T(m_.latent.rope);
    const T value = T(m_.latent.value_dim);
    const T queries = q_rank > 0 ? hidden_ * q_rank + q_rank + q_rank * heads * dim : hidden_ * heads * dim;
    const T keys = hidden_ * (kv_rank + rope) + kv_rank + kv_rank * heads * (dim - rope + value);
    return queries + keys + heads * value * hidden_;
  }

  // Up, down and, gated, one more.
  T Mlp(T width) const { return (m_.gated ? 2 : 1) * Linear(hidden_, width) + Linear(width, hidden_); }
  // With their router.
  T Experts() const {
    const T width = T(m_.moe.ffn_hidden), experts = T(m_.moe.experts), shared = T(m_.moe.shared_experts);
    return experts * Mlp(width) + Linear(hidden_, experts) + (shared > 0 ? Mlp(shared * width) : 0);
  }

  T Embedding() const {
    if (m_.patch == 0) return T(m_.vocabulary) * hidden_;
    const T pixels = 3 * T(m_.patch) * T(m_.patch);
    return pixels * hidden_ + hidden_ + hidden_;  // a bias, and the token of the class
  }

  const Model& m_;
  const T hidden_;
};

void ReadMixture(TableReader& in, Mixture& moe) {
  in.Require({"experts", "top_k", "ffn_hidden"});
  const IntegerRange size{.least = 1, .most = kMost}, count{.least = 0, .most = kMost};
  in.Integer("experts", size, moe.experts);
  in.Integer("top_k", size, moe.top_k);
  in.Integer("ffn_hidden", size, moe.ffn_hidden);
  in.Integer("shared_experts", count, moe.shared_experts);
  in.Integer("dense_layers", count, moe.dense_layers);
  in.Integer("every", size, moe.every);
  if (moe.top_k > moe.experts)
    in.Fail("top_k", fmt::format("top_k must be at most the {} experts, found {}", moe.experts, moe.top_k));
}

void ReadWindow(TableReader& in, Window& window) {
  in.Require({"tokens", "layers"});
  const IntegerRange size{.least = 1, .most = kMost};
  in.Integer("tokens", size, window.tokens);
  in.Integer("layers", size, window.layers);
}

void ReadLatent(TableReader& in, LatentAttention& latent) {
  in.Require({"kv_rank", "rope", "value_dim"});
  const IntegerRange size{.least = 1, .most = kMost};
  in.Integer("q_rank", {.least = 0, .most = kMost}, latent.q_rank);
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
  if (moe.experts > 0 && layers - moe.dense_layers < moe.every)
    return InvalidArgument("moe.every must be at most the {} layers behind the dense ones, found {}",
                           layers - moe.dense_layers, moe.every);
  if (window.layers > layers)
    return InvalidArgument("window.layers must be at most the {} layers, found {}", layers, window.layers);
  if (window.layers > 0 && patch > 0)
    return InvalidArgument("window is of decoders; found one of a vision transformer (patch {})", patch);
  if (latent.kv_rank > 0 && HeadDim() <= latent.rope)
    return InvalidArgument("head_dim must be more than latent.rope, found {} and {}", HeadDim(), latent.rope);
  if (const double parameters = Count<double>(*this).All(); parameters > kMostParameters)
    return InvalidArgument("layers and the other sizes make {:.1e} parameters, expected at most {:.0e}", parameters,
                           kMostParameters);
  return absl::OkStatus();
}

int64_t Model::Parameters() const { return Count<int64_t>(*this).All(); }

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
  in.Boolean("sinks", model.sinks);
  in.OneOf("norm", {"rmsnorm", "layernorm"}, model.norm);
  in.Table("moe", [&](TableReader& moe) { ReadMixture(moe, model.moe); });
  in.Table("window", [&](TableReader& window) { ReadWindow(window, model.window); });
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
