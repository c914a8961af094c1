#include "lockstep/plan/madmax.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"

namespace lockstep::plan {
namespace {

absl::StatusOr<double> Positive(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number())
    return InvalidArgument("\"{}\" is missing or is no number; expected one above zero", key);
  const double value = found->get<double>();
  if (!(value > 0) || !std::isfinite(value))
    return InvalidArgument("\"{}\" is {}; expected more than zero", key, value);
  return value;
}

absl::StatusOr<double> ShareOf(const Json& object, const char* key) {
  const Json& found = At(object, key);
  if (found.is_number() && found >= 0 && found <= 1) return found.get<double>();
  return InvalidArgument("\"{}\" is {}; expected 0 to 1", key, OneLine(found));
}

absl::StatusOr<size_t> Layers(const Json& model, const char* key) {
  constexpr double kMost = 1e5;
  LS_ASSIGN_OR_RETURN(const double value, Positive(model, key));
  if (value != std::floor(value) || value > kMost)
    return InvalidArgument("\"{}\" is {}; expected a whole number of layers, at most {}", key, value, kMost);
  return static_cast<size_t>(value);
}

// How one kind of layer is spread: at most two strategies, of nodes and within them.
struct Strategies {
  std::vector<std::string> names;
  std::vector<double> degrees;

  bool Has(std::string_view name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
  double Degree(std::initializer_list<std::string_view> of) const {
    double product = 1;
    for (size_t i = 0; i < names.size(); ++i)
      if (std::find(of.begin(), of.end(), names[i]) != of.end()) product *= degrees[i];
    return product;
  }
  // By level of the network; one strategy alone spans all of it.
  double Rate(const std::vector<double>& rates, size_t i) const { return rates[rates.size() - names.size() + i]; }
};

struct Rates {
  double flops = 0, memory = 0;                        // of a device, that are reached
  double devices = 1, node = 1;                        // of all nodes; of one
  std::vector<double> all_to_all, all_reduce, gather;  // B/s by level: within a node, across all
};

// Devices of a node.
absl::StatusOr<double> NodeOf(double devices, double nodes) {
  const double each = devices / nodes;
  if (devices == std::floor(devices) && nodes == std::floor(nodes) && each == std::floor(each)) return each;
  return InvalidArgument("\"num_devices\" is {}, \"num_nodes\" {}; expected as many whole devices in each node",
                         devices, nodes);
}

absl::StatusOr<Rates> RatesOf(const Json& system, double bytes) {
  if (bytes != 8 && bytes != 4 && bytes != 2 && bytes != 1)
    return InvalidArgument("\"bytes_per_nonemb_param\" is {}; expected 1, 2, 4 or 8", bytes);
  const char* const kind = bytes == 8 ? "f64_flops" : bytes == 4 ? "f32_flops" : bytes == 2 ? "f16_flops" : "i8_ops";
  LS_ASSIGN_OR_RETURN(const double peak, Positive(system, kind));
  LS_ASSIGN_OR_RETURN(const double used, Positive(system, "flops_util"));
  LS_ASSIGN_OR_RETURN(const double memory, Positive(system, "mem_bw"));
  LS_ASSIGN_OR_RETURN(const double memory_used, Positive(system, "mem_bw_util"));
  LS_ASSIGN_OR_RETURN(const double devices, Positive(system, "num_devices"));
  LS_ASSIGN_OR_RETURN(const double nodes, Positive(system, "num_nodes"));
  LS_ASSIGN_OR_RETURN(const double links, Positive(system, "num_nvlinks"));
  LS_ASSIGN_OR_RETURN(const double link, Positive(system, "bw_per_nvlink"));
  LS_ASSIGN_OR_RETURN(const double link_used, Positive(system, "nvlink_util"));
  Rates rates{peak * used, memory * memory_used, devices, 0, {}, {}, {}};
  LS_ASSIGN_OR_RETURN(rates.node, NodeOf(devices, nodes));
  const double intra = links * (link / 2) * link_used;  // given for both directions
  rates.all_to_all = rates.all_reduce = {intra};
  if (nodes > 1) {
    LS_ASSIGN_OR_RETURN(const double ports, Positive(system, "num_ibroce_ports"));
    LS_ASSIGN_OR_RETURN(const double port, Positive(system, "ibroce_bw"));
    LS_ASSIGN_OR_RETURN(const double port_used, Positive(system, "ibroce_util"));
    LS_ASSIGN_OR_RETURN(const double within, ShareOf(system, "ar_perc_intra"));
    const double inter = ports * (port / 2) * port_used / rates.node;
    rates.all_to_all.push_back(inter);
    rates.all_reduce.push_back(within * intra + (1 - within) * inter);
  }
  for (const double rate : rates.all_reduce) rates.gather.push_back(2 * rate);
  return rates;
}

// No strategy twice, sharding outermost; of two the first within a node.
absl::Status CheckStrategies(const std::string& layer, const Strategies& strategies, const Rates& rates) {
  const std::vector<std::string>& names = strategies.names;
  const std::vector<double>& degrees = strategies.degrees;
  const bool two = names.size() == 2;
  if (two && names[0] == names[1]) return InvalidArgument("\"{}_parallel\" has \"{}\" twice", layer, names[0]);
  if (two && names[1] == "fsdp") return InvalidArgument("\"{}_parallel\": \"fsdp\" can only be the first", layer);
  if (degrees[0] * (two ? degrees[1] : 1) != rates.devices)
    return InvalidArgument("\"{}_parallel_degree\" is of {} devices; expected all {}", layer,
                           degrees[0] * (two ? degrees[1] : 1), rates.devices);
  if (two && degrees[0] != rates.node)
    return InvalidArgument("\"{}_parallel_degree\" begins with {}; expected the {} devices of a node", layer,
                           degrees[0], rates.node);
  return absl::OkStatus();
}

absl::StatusOr<Strategies> StrategiesOf(const Json& task, const std::string& layer,
                                        std::initializer_list<std::string_view> allowed, const Rates& rates) {
  Strategies strategies;
  const auto names = task.find(layer + "_parallel"), degrees = task.find(layer + "_parallel_degree");
  if (names == task.end() || degrees == task.end() || !names->is_array() || !degrees->is_array() ||
      names->size() != degrees->size() || names->empty() || names->size() > rates.all_reduce.size()) {
    return InvalidArgument("\"{}_parallel\" and its degrees are not 1 to {} strategies", layer,
                           rates.all_reduce.size());
  }
  for (size_t i = 0; i < names->size(); ++i) {
    const std::string name = (*names)[i].is_string() ? (*names)[i].get<std::string>() : "";
    const double degree = (*degrees)[i].is_number() ? (*degrees)[i].get<double>() : 0;
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end() || !(degree > 1) ||
        degree != std::floor(degree))
      return InvalidArgument("\"{}_parallel\": strategy {} is \"{}\" of degree {}", layer, i, name, degree);
    strategies.names.push_back(name);
    strategies.degrees.push_back(degree);
  }
  LS_RETURN_IF_ERROR(CheckStrategies(layer, strategies, rates));
  return strategies;
}

// Of the step, which both kinds of layers have to make one of.
absl::Status CheckBatches(const Strategies& layers, double batch, const Strategies& embedding, double looked_up) {
  const double all = batch * layers.Degree({"ddp", "fsdp"}), all_looked_up = looked_up * embedding.Degree({"ddp"});
  if (all == all_looked_up) return absl::OkStatus();
  return InvalidArgument("\"local_emb_bs\" makes a batch of {}, that of the layers one of {}; expected the same",
                         all_looked_up, all);
}

// Two streams of a device, each of which does one thing after the other. Times are from the begin of the iteration.
class Streams {
 public:
  double Compute(double seconds, double after) { return computed_ = std::max(computed_, after) + seconds; }
  double Transfer(double seconds, double after) { return moved_ = std::max(moved_, after) + seconds; }
  // The backward pass begins when all of the forward one is over.
  void Meet() { computed_ = moved_ = End(); }
  double End() const { return std::max(computed_, moved_); }

 private:
  double computed_ = 0, moved_ = 0;
};

// A fully connected layer: what it takes, and what its strategies make it send.
struct Layer {
  double parameters = 0, gemm = 0;  // seconds of the forward one
};

class Iteration {
 public:
  Iteration(Rates rates, Strategies strategies, double bytes, double activation)
      : rates_(std::move(rates)),
        strategies_(std::move(strategies)),
        bytes_(bytes),
        activation_(activation),
        shard_(strategies_.Degree({"tp", "pp", "fsdp"})) {}

  bool sharded() const { return strategies_.Has("fsdp"); }

  double Gather(const Layer& layer, double after) {
    const double seconds =
        layer.parameters / shard_ * strategies_.degrees[0] * bytes_ / strategies_.Rate(rates_.gather, 0);
    times_.all_gather.value += seconds;
    return streams_.Transfer(seconds, after);
  }
  double Forward(const Layer& layer, double after) { return Gemm(layer.gemm, after); }
  double Backward(const Layer& layer, double after) { return Gemm(2 * layer.gemm, after); }
  // Of tensor parallelism; the moment at which its results may be used.
  double SumActivations(double after) {
    double end = 0;
    for (size_t i = 0; i < strategies_.names.size(); ++i)
      if (strategies_.names[i] == "tp") end = AllReduce(activation_ / strategies_.Rate(rates_.all_reduce, i), after);
    return end;
  }
  // What follows a backward layer, level by level: activations are summed only if `sums`.
  double SendBackward(const Layer& layer, double after, bool sums) {
    double end = 0, shard = shard_;
    for (size_t i = 0; i < strategies_.names.size(); ++i) {
      const std::string& name = strategies_.names[i];
      const double degree = strategies_.degrees[i], rate = strategies_.Rate(rates_.all_reduce, i);
      if (name == "tp" && sums) end = AllReduce(activation_ / rate, after);
      if (name == "ddp") AllReduce(layer.parameters / shard * bytes_ / rate, after);
      if (name == "fsdp") ReduceScatter(layer.parameters / shard_ * degree * bytes_ / (2 * rate), after);
      if (name == "tp" || name == "fsdp") shard /= degree;
    }
    return end;
  }
  double AllReduce(double seconds, double after) {
    times_.all_reduce.value += seconds;
    return streams_.Transfer(seconds, after);
  }
  double AllToAll(double seconds, double after) {
    times_.all_to_all.value += seconds;
    return streams_.Transfer(seconds, after);
  }
  double Embed(double seconds, double after) {
    times_.embedding.value += seconds;
    return streams_.Compute(seconds, after);
  }
  void Meet() { streams_.Meet(); }
  MadmaxTimes Times() {
    times_.iteration.value = streams_.End();
    return times_;
  }
  const Rates& rates() const { return rates_; }

 private:
  double Gemm(double seconds, double after) {
    times_.gemm.value += seconds;
    return streams_.Compute(seconds, after);
  }
  void ReduceScatter(double seconds, double after) {
    times_.reduce_scatter.value += seconds;
    streams_.Transfer(seconds, after);
  }

  const Rates rates_;
  const Strategies strategies_;
  const double bytes_, activation_, shard_;
  Streams streams_;
  MadmaxTimes times_;
};

// What a task does, and what of a model that is tuned stays as it is.
struct Pass {
  bool backward = true;
  bool top = false, bottom = false, embedding = false, transformer = false;  // frozen
};

absl::StatusOr<Pass> PassOf(const Json& task) {
  const std::string type = TextAt(task, "type");
  if (type != "pretrain" && type != "finetune" && type != "inference")
    return InvalidArgument("\"type\" is {}; expected pretrain, finetune or inference", OneLine(At(task, "type")));
  Pass pass{.backward = type != "inference"};
  const std::pair<const char*, bool*> flags[] = {{"freeze_top_mlp", &pass.top},
                                                 {"freeze_bot_mlp", &pass.bottom},
                                                 {"freeze_emb", &pass.embedding},
                                                 {"freeze_transformer", &pass.transformer}};
  for (const auto& [key, frozen] : flags) {
    const Json& given = At(task, key);
    if (!given.is_null() && !given.is_boolean())
      return InvalidArgument("\"{}\" is {}; expected true or false", key, OneLine(given));
    *frozen = given == true;
    if (*frozen && type != "finetune") return InvalidArgument("\"{}\" is of finetune, not of {}", key, type);
  }
  if (const Json& layers = At(task, "min_frozen_layer"); !layers.is_null() && layers != 0) pass.transformer = true;
  return pass;
}

absl::Status NotKnown(std::string_view what) {
  return MakeError(absl::StatusCode::kUnimplemented, fmt::format("{}: no output is known to compare with", what));
}

// ---- recommendation models ----

struct Dlrm {
  size_t bottom = 0, top = 0;
  Layer layer;
  double lookup = 0;      // seconds of reading the tables
  double all_to_all = 0;  // seconds of exchanging what was read; 0: each device has all tables
  double all_reduce = 0;  // seconds of summing its gradients
};

class DlrmPass {
 public:
  DlrmPass(const Dlrm& model, Iteration& iteration) : model_(model), iteration_(iteration) {}

  void Forward() {
    const double read = iteration_.Embed(model_.lookup, 0);
    const double exchanged = model_.all_to_all > 0 ? iteration_.AllToAll(model_.all_to_all, read) : 0;
    const double bottom = ForwardLayers(model_.bottom, 0);
    ForwardLayers(model_.top, std::max(bottom, exchanged));
  }

  void Backward(const Pass& pass) {
    const auto [top, summed] = BackwardLayers(model_.top);
    double exchanged = std::max(top, summed);
    if (!pass.embedding && model_.all_to_all > 0) exchanged = iteration_.AllToAll(model_.all_to_all, exchanged);
    if (!pass.embedding && model_.all_reduce > 0) exchanged = iteration_.AllReduce(model_.all_reduce, exchanged);
    if (!pass.bottom) BackwardLayers(model_.bottom, summed);
    if (!pass.embedding) iteration_.Embed(model_.lookup, exchanged);
  }

 private:
  // Weights are gathered two layers ahead; every second layer of tensor parallelism sums.
  double ForwardLayers(size_t count, double after) {
    std::vector<double> ends(count);
    for (size_t i = 0; i < count; ++i) {
      if (iteration_.sharded()) after = std::max(after, iteration_.Gather(model_.layer, i >= 2 ? ends[i - 2] : 0));
      ends[i] = iteration_.Forward(model_.layer, after);
      after = i % 2 == 1 ? iteration_.SumActivations(ends[i]) : 0;
    }
    return after;
  }
  struct Ends {
    double computed = 0, summed = 0;
  };
  Ends BackwardLayers(size_t count, double after = 0) {
    std::vector<double> ends(count);
    for (size_t i = count; i-- > 0;) {
      if (iteration_.sharded())
        after = std::max(after, iteration_.Gather(model_.layer, i + 2 < count ? ends[i + 2] : 0));
      ends[i] = iteration_.Backward(model_.layer, after);
      after = iteration_.SendBackward(model_.layer, ends[i], i % 2 == 0);
    }
    return {ends[0], after};
  }

  const Dlrm& model_;
  Iteration& iteration_;
};

absl::StatusOr<MadmaxTimes> PredictDlrm(const Json& model, const Json& task, double bytes, Rates rates) {
  LS_ASSIGN_OR_RETURN(const Pass pass, PassOf(task));
  if (pass.top || pass.transformer) return NotKnown("a frozen top, or frozen transformers");
  LS_ASSIGN_OR_RETURN(const double width, Positive(model, "mlp_dim"));
  LS_ASSIGN_OR_RETURN(const size_t bottom, Layers(model, "num_bot_mlp_layers"));
  LS_ASSIGN_OR_RETURN(const size_t top, Layers(model, "num_top_mlp_layers"));
  LS_ASSIGN_OR_RETURN(const double tables, Positive(model, "num_tables"));
  LS_ASSIGN_OR_RETURN(const double pooling, Positive(model, "pooling_size"));
  LS_ASSIGN_OR_RETURN(const double dimension, Positive(model, "emb_dim"));
  LS_ASSIGN_OR_RETURN(const double embedding_bytes, Positive(model, "bytes_per_emb_param"));
  LS_ASSIGN_OR_RETURN(const double batch, Positive(task, "local_mlp_bs"));
  LS_ASSIGN_OR_RETURN(const double looked_up, Positive(task, "local_emb_bs"));
  LS_ASSIGN_OR_RETURN(const Strategies layers, StrategiesOf(task, "mlp", {"ddp", "fsdp", "tp", "pp"}, rates));
  LS_ASSIGN_OR_RETURN(const Strategies embedding, StrategiesOf(task, "emb", {"ddp", "mp"}, rates));
  LS_RETURN_IF_ERROR(CheckBatches(layers, batch, embedding, looked_up));
  Dlrm dlrm{bottom, top, {}, 0, 0, 0};
  dlrm.layer.parameters = width * width;
  dlrm.layer.gemm = 2 * width * width * batch / layers.Degree({"tp"}) / rates.flops;
  const double read = tables * pooling * dimension * embedding_bytes * looked_up / embedding.Degree({"mp"});
  dlrm.lookup = read / rates.memory;
  for (size_t i = 0; i < embedding.names.size(); ++i) {
    if (embedding.names[i] == "mp")
      dlrm.all_to_all = 2 * (read / embedding.degrees[i]) / embedding.Rate(rates.all_to_all, i);
    else
      dlrm.all_reduce = read / embedding.Rate(rates.all_reduce, i);
  }
  Iteration iteration(std::move(rates), layers, bytes, batch * width * bytes);
  DlrmPass passes(dlrm, iteration);
  passes.Forward();
  if (!pass.backward) return iteration.Times();
  iteration.Meet();
  passes.Backward(pass);
  return iteration.Times();
}

// ---- transformers ----

struct Transformer {
  size_t blocks = 0;
  Layer attention, feed_forward;
  double lookup = 0;      // seconds of reading the table
  double all_reduce = 0;  // seconds of summing its gradient
};

void ForwardTransformer(const Transformer& model, Iteration& iteration) {
  iteration.Embed(model.lookup, 0);
  double after = 0;
  double ends[] = {0, 0};  // of the same layer in the block before
  for (size_t i = 0; i < model.blocks; ++i) {
    for (const bool is_attention : {true, false}) {
      const Layer& layer = is_attention ? model.attention : model.feed_forward;
      double& end = ends[is_attention];
      if (iteration.sharded()) after = std::max(after, iteration.Gather(layer, end));
      end = iteration.Forward(layer, after);
      after = iteration.SumActivations(end);
    }
  }
}

// Gathering ahead, the first layer's weights are gathered whether or not they are sharded.
void BackwardTransformer(const Transformer& model, Iteration& iteration, bool ahead) {
  double after = 0, gathered = ahead ? iteration.Gather(model.feed_forward, 0) : 0;
  double ends[] = {0, 0};
  for (size_t i = model.blocks; i-- > 0;) {
    for (const bool is_attention : {false, true}) {
      const Layer& layer = is_attention ? model.attention : model.feed_forward;
      double& end = ends[is_attention];
      after = std::max(after, gathered);
      gathered = 0;
      if (iteration.sharded() && !ahead) after = std::max(after, iteration.Gather(layer, end));
      if (iteration.sharded() && ahead && (!is_attention || i > 0))
        gathered = iteration.Gather(is_attention ? model.feed_forward : model.attention, 0);
      end = iteration.Backward(layer, after);
      after = iteration.SendBackward(layer, end, true);
    }
  }
  const double summed = iteration.AllReduce(model.all_reduce, std::max(ends[1], after));
  iteration.Embed(model.lookup, summed);
}

// Of images as many tokens as patches.
absl::StatusOr<double> SequenceOf(const Json& model) {
  if (model.contains("transformer_seq_len")) return Positive(model, "transformer_seq_len");
  LS_ASSIGN_OR_RETURN(const double image, Positive(model, "image_size"));
  LS_ASSIGN_OR_RETURN(const double patch, Positive(model, "patch_dim"));
  const double across = std::ceil(image / patch);
  return across * across;
}

absl::StatusOr<MadmaxTimes> PredictTransformer(const Json& model, const Json& task, double bytes, Rates rates,
                                               bool ahead) {
  LS_ASSIGN_OR_RETURN(const Pass pass, PassOf(task));
  if (pass.top || pass.bottom || pass.embedding || pass.transformer) return NotKnown("a transformer, in part frozen");
  LS_ASSIGN_OR_RETURN(const double width, Positive(model, "attention_dim"));
  LS_ASSIGN_OR_RETURN(const double hidden, Positive(model, "transformer_fc_dim"));
  LS_ASSIGN_OR_RETURN(const size_t blocks, Layers(model, "num_transformer_layers"));
  LS_ASSIGN_OR_RETURN(const double embedding_bytes, Positive(model, "bytes_per_emb_param"));
  LS_ASSIGN_OR_RETURN(const double batch, Positive(task, "local_transformer_bs"));
  LS_ASSIGN_OR_RETURN(const double looked_up, Positive(task, "local_emb_bs"));
  LS_ASSIGN_OR_RETURN(const double sequence, SequenceOf(model));
  LS_ASSIGN_OR_RETURN(const Strategies layers, StrategiesOf(task, "transformer", {"ddp", "fsdp", "tp", "pp"}, rates));
  LS_ASSIGN_OR_RETURN(const Strategies embedding, StrategiesOf(task, "emb", {"ddp"}, rates));
  LS_RETURN_IF_ERROR(CheckBatches(layers, batch, embedding, looked_up));
  const auto layer = [&](double parameters) {
    return Layer{parameters, 2 * parameters * sequence * batch / layers.Degree({"tp"}) / rates.flops};
  };
  const double read = 2 * sequence * width * embedding_bytes * looked_up;
  const Transformer transformer{blocks, layer(4 * width * width), layer(2 * width * hidden), read / rates.memory,
                                read / embedding.Rate(rates.all_reduce, 0)};
  Iteration iteration(std::move(rates), layers, bytes, batch * sequence * width * bytes);
  ForwardTransformer(transformer, iteration);
  if (!pass.backward) return iteration.Times();
  iteration.Meet();
  BackwardTransformer(transformer, iteration, ahead);
  return iteration.Times();
}

}  // namespace

std::optional<MadmaxVariant> MadmaxVariantOf(std::string_view name) {
  if (name == "dlrm_tasks") return MadmaxVariant::kDlrm;
  if (name == "llm_tasks_preoptimized") return MadmaxVariant::kGatherOnTime;
  if (name == "opt") return MadmaxVariant::kGatherAhead;
  if (name == "vit_tasks") return MadmaxVariant::kImages;
  return std::nullopt;
}

absl::StatusOr<MadmaxTimes> PredictMadmax(const Json& model, const Json& system, const Json& task,
                                          MadmaxVariant variant) {
  LS_ASSIGN_OR_RETURN(const double bytes, Positive(model, "bytes_per_nonemb_param"));
  LS_ASSIGN_OR_RETURN(Rates rates, RatesOf(system, bytes));
  const std::string kind = TextAt(model, "type");
  if (kind != "DLRM" && kind != "LLM" && kind != "ViT") return NotKnown(fmt::format("a model of kind \"{}\"", kind));
  const bool is_dlrm = variant == MadmaxVariant::kDlrm, is_images = variant == MadmaxVariant::kImages;
  if (is_dlrm != (kind == "DLRM") || is_images != (kind == "ViT"))
    return InvalidArgument("a model of kind \"{}\", but the variant is another kind's", kind);
  if (is_dlrm) return PredictDlrm(model, task, bytes, std::move(rates));
  return PredictTransformer(model, task, bytes, std::move(rates), variant != MadmaxVariant::kGatherOnTime);
}

}  // namespace lockstep::plan
