#include "lockstep/cluster/model.h"

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::cluster {
namespace {

// Wide enough for any model to come, small enough that no product of three overflows 64 bits.
constexpr int64_t kMost = 1 << 20;

int64_t Linear(int64_t in, int64_t out, bool bias) { return in * out + (bias ? out : 0); }

int64_t NormParameters(const Model& model) { return model.norm == "layernorm" ? 2 * model.hidden : model.hidden; }

// Attention (q, k, v, output), MLP (up, down and, gated, one more), and a norm before each.
int64_t LayerParameters(const Model& model) {
  const int64_t kv = int64_t{model.hidden} / model.heads * model.kv_heads;
  const int64_t attention =
      2 * Linear(model.hidden, model.hidden, model.biases) + 2 * Linear(model.hidden, kv, model.biases);
  const int64_t mlp = (model.gated ? 2 : 1) * Linear(model.hidden, model.ffn_hidden, model.biases) +
                      Linear(model.ffn_hidden, model.hidden, model.biases);
  return attention + mlp + 2 * NormParameters(model);
}

}  // namespace

absl::Status Model::Validate() const {
  if (hidden % heads != 0)
    return InvalidArgument("heads must divide hidden, found {} heads for hidden {}", heads, hidden);
  if (heads % kv_heads != 0)
    return InvalidArgument("kv_heads must divide heads, found {} for {} heads", kv_heads, heads);
  return absl::OkStatus();
}

int64_t Model::Parameters() const {
  const int64_t embedding = int64_t{vocabulary} * hidden;
  const int64_t positions = learned_positions ? int64_t{context} * hidden : 0;
  const int64_t head = tied_embeddings ? 0 : Linear(hidden, vocabulary, biases);
  return embedding + positions + layers * LayerParameters(*this) + NormParameters(*this) + head;
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
  in.Integer("vocabulary", size, model.vocabulary);
  in.Integer("context", {.least = 1, .most = int64_t{1} << 30}, model.context);
  in.Boolean("gated", model.gated);
  in.Boolean("biases", model.biases);
  in.Boolean("learned_positions", model.learned_positions);
  in.Boolean("tied_embeddings", model.tied_embeddings);
  in.OneOf("norm", {"rmsnorm", "layernorm"}, model.norm);
  in.Check(model.Validate());
  LS_RETURN_IF_ERROR(in.Finish());
  return model;
}

absl::StatusOr<Model> ReadModel(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseModel(text, path);
}

}  // namespace lockstep::cluster
