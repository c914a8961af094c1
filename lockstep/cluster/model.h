// Model: the shape of a transformer, as far as its size, its speed and its split over ranks depend on it: a decoder,
// with a mixture of experts or without, or a vision transformer. Read from TOML. Thread-compatible.
//
//   LS_ASSIGN_OR_RETURN(const Model model, ReadModel("presets/models/llama3-8b.toml"));
//   model.Parameters()   // 8030261248
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::cluster {

// The first `dense_layers` have an MLP of the model's ffn_hidden, as have those behind them of which no `every`-th.
struct Mixture {
  int experts = 0, top_k = 0;  // 0 experts: none
  int ffn_hidden = 0;          // of an expert
  int shared_experts = 0;      // to which every token goes
  int dense_layers = 0;
  int every = 1;
};
// Sliding windows: in so many layers a token attends to itself and those before it, to so many tokens in all.
struct Window {
  int tokens = 0, layers = 0;  // 0 layers: none
};
// Multi-head latent attention (arXiv 2405.04434): queries (where q_rank > 0), keys and values come out of narrow
// vectors. head_dim is then that of queries and keys, of which `rope` are not compressed.
struct LatentAttention {
  int q_rank = 0, kv_rank = 0, rope = 0, value_dim = 0;  // kv_rank 0: none
};

struct Model {
  std::string name;
  int layers = 1;
  int hidden = 1;
  int ffn_hidden = 4;
  int heads = 1;
  int kv_heads = 1;      // fewer than heads: grouped-query attention
  int head_dim = 0;      // 0: hidden / heads
  int vocabulary = 256;  // or classes, of a vision transformer
  int context = 1;       // longest sequence, in tokens
  int patch = 0;  // of a vision transformer: side in pixels, of three colours; a token each, and one for the class
  Mixture moe;
  Window window;
  LatentAttention latent;
  bool gated = false;              // SwiGLU: three matrices in the MLP, not two
  bool biases = false;             // linear layers add one
  bool learned_positions = false;  // a vector per position; else rotary, which has no parameters
  bool tied_embeddings = false;    // the output layer is the input embedding
  bool sinks = false;              // a value of each head joins the scores of its softmax
  bool norms_queries = false;      // queries and keys of each head have a norm of their own
  std::string norm = "rmsnorm";    // "rmsnorm": a gain; "layernorm": a gain and a bias

  int HeadDim() const { return head_dim > 0 ? head_dim : hidden / heads; }
  absl::Status Validate() const;
  // Exact count of trained values.
  int64_t Parameters() const;
};

absl::StatusOr<Model> ReadModel(const std::string& path);
absl::StatusOr<Model> ParseModel(std::string_view text, const std::string& file);

}  // namespace lockstep::cluster
