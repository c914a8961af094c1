// Model: the shape of a decoder-only transformer, as far as its size and its split over ranks depend on it. Read from
// TOML. Thread-compatible.
//
//   LS_ASSIGN_OR_RETURN(const Model model, ReadModel("presets/models/llama3-8b.toml"));
//   model.Parameters()   // 8030261248
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::cluster {

struct Model {
  std::string name;
  int layers = 1;
  int hidden = 1;
  int ffn_hidden = 4;
  int heads = 1;
  int kv_heads = 1;  // fewer than heads: grouped-query attention
  int vocabulary = 256;
  int context = 1;                 // longest sequence, in tokens
  bool gated = false;              // SwiGLU: three matrices in the MLP, not two
  bool biases = false;             // linear layers add one
  bool learned_positions = false;  // a vector per position; else rotary, which has no parameters
  bool tied_embeddings = false;    // the output layer is the input embedding
  std::string norm = "rmsnorm";    // "rmsnorm": a gain; "layernorm": a gain and a bias

  absl::Status Validate() const;
  // Exact count of trained values.
  int64_t Parameters() const;
};

absl::StatusOr<Model> ReadModel(const std::string& path);
absl::StatusOr<Model> ParseModel(std::string_view text, const std::string& file);

}  // namespace lockstep::cluster
