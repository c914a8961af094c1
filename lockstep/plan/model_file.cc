#include "lockstep/plan/model_file.h"

#include <algorithm>
#include <charconv>
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

struct LayoutKey {
  const char* name;
  int Workload::* member;
};
constexpr LayoutKey kLayoutKeys[] = {
    {"tp", &Workload::tp}, {"pp", &Workload::pp},     {"dp", &Workload::dp},     {"cp", &Workload::cp},
    {"ep", &Workload::ep}, {"vp", &Workload::chunks}, {"zero", &Workload::zero}, {"mbs", &Workload::microbatch}};

absl::Status TakePair(const std::string& key, const std::string& value, Workload& w) {
  if (key == "recompute") {
    if (value != "none" && value != "selective" && value != "full")
      return InvalidArgument("--layout: recompute is \"{}\"; expected none, selective or full", value);
    w.recompute = value == "full" ? Recompute::kFull : value == "none" ? Recompute::kNone : Recompute::kSelective;
    return absl::OkStatus();
  }
  int number = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 0)
    return InvalidArgument("--layout: {} is \"{}\"; expected a whole number", key, value);
  if (key == "seq_parallel") {
    w.sequence_parallel = number == 1;
    return absl::OkStatus();
  }
  for (const LayoutKey& known : kLayoutKeys) {
    if (key != known.name) continue;
    w.*known.member = number;
    return absl::OkStatus();
  }
  return InvalidArgument(
      "--layout: there is no \"{}\"; expected tp, pp, dp, cp, ep, vp, zero, mbs, recompute or seq_parallel", key);
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
  // An MLP of two matrices is that of GPT-2 and its like, whose keys are others.
  w.gated = !config.contains("n_embd") && TextAt(config, "hidden_act") != "gelu";
  if (w.ffn == 0) w.ffn = 4 * w.hidden;
  if (w.kv_heads == 0) w.kv_heads = w.heads;
  if (w.head_dim == 0 && w.heads > 0) w.head_dim = w.hidden / w.heads;
  if (w.experts > 0 && w.expert_ffn == 0) w.expert_ffn = w.ffn;
  if (w.experts > 0 && w.top_k == 0)
    return InvalidArgument("{}: {} experts, but no num_experts_per_tok", path, w.experts);
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
  w.head_dim = model.hidden / model.heads;
  w.vocabulary = model.vocabulary;
  w.gated = model.gated;
  if (w.sequence == 0) w.sequence = model.context;
  return absl::OkStatus();
}

absl::Status TakeLayout(const std::string& text, Workload& w) {
  bool has_dp = false, has_sequence_parallel = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, end - at);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--layout: \"{}\" is no KEY=VALUE; write it as tp=8,pp=4", pair);
    const std::string key = pair.substr(0, equals);
    LS_RETURN_IF_ERROR(TakePair(key, pair.substr(equals + 1), w));
    has_dp = has_dp || key == "dp";
    has_sequence_parallel = has_sequence_parallel || key == "seq_parallel";
    at = end + 1;
  }
  const int64_t others = int64_t{std::max(1, w.tp)} * std::max(1, w.pp) * std::max(1, w.cp);
  if (!has_dp && w.accelerators % others == 0) w.dp = static_cast<int>(w.accelerators / others);
  if (!has_sequence_parallel) w.sequence_parallel = w.tp > 1;
  return w.Validate();
}

}  // namespace lockstep::plan
