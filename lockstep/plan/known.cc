#include "lockstep/plan/known.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::plan {
namespace {

absl::StatusOr<ModelNotes> ReadModelNotes(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  cluster::TableReader in(root, path);
  std::vector<ModelNotes::Note> all;
  in.Tables("model", [&](cluster::TableReader& inner) {
    ModelNotes::Note& note = all.emplace_back();
    inner.Require({"names", "hidden", "layers"});
    inner.Texts("names", note.names);
    inner.Integer("hidden", {.least = 1}, note.hidden);
    inner.Integer("layers", {.least = 1}, note.layers);
    inner.Integer("dense_layers", {.least = 0}, note.dense_layers);
    inner.Integer("shared_experts", {.least = 0}, note.shared_experts);
    inner.Integer("q_rank", {.least = 0}, note.latent.q_rank);
    inner.Integer("kv_rank", {.least = 0}, note.latent.kv_rank);
    inner.Integer("rope", {.least = 0}, note.latent.rope);
    inner.Integer("value_dim", {.least = 0}, note.latent.value_dim);
    inner.Integer("head_dim", {.least = 0}, note.head_dim);
    inner.Integer("window", {.least = 0}, note.window.tokens);
    inner.Integer("windowed_layers", {.least = 0}, note.window.layers);
  });
  LS_RETURN_IF_ERROR(in.Finish());
  return ModelNotes(std::move(all));
}

// "deepseek-ai/DeepSeek-V3.1" as "deepseekv<3.1>": behind its owner's, letters and whole numbers, however they are put
// together.
std::string Spelled(std::string_view name) {
  name = name.substr(name.rfind('/') + 1);
  std::string spelled;
  for (size_t at = 0; at < name.size(); ++at) {
    const auto letter = static_cast<unsigned char>(name[at]);
    if (absl::ascii_isalpha(letter)) spelled += absl::ascii_tolower(letter);
    if (!absl::ascii_isdigit(letter)) continue;
    const size_t begin = at;
    while (at + 1 < name.size() &&
           (absl::ascii_isdigit(static_cast<unsigned char>(name[at + 1])) || name[at + 1] == '.'))
      ++at;
    spelled += fmt::format("<{}>", name.substr(begin, at + 1 - begin));
  }
  return spelled;
}

// How much of a name is that of a model that it begins with; 0: it is another one.
size_t Common(std::string_view name, const std::string& of_model) {
  const std::string known = Spelled(of_model);
  return Spelled(name).starts_with(known) ? known.size() : 0;
}

}  // namespace

void ModelNotes::Complete(std::string_view name, Workload& workload) const {
  const auto begins = [&](const std::string& known) { return Common(name, known) > 0; };
  for (const Note& note : all_) {
    if (workload.experts == 0 || workload.hidden != note.hidden || std::ranges::none_of(note.names, begins)) continue;
    const double share = std::ceil(double(note.dense_layers) * workload.layers / note.layers);
    workload.dense_layers = std::min(note.dense_layers, static_cast<int>(share));
    workload.shared_experts = note.shared_experts;
    workload.window = {note.window.tokens, note.window.layers * workload.layers / note.layers};
    if (note.latent.kv_rank == 0) continue;
    workload.latent = note.latent;
    workload.head_dim = note.head_dim;
  }
}

std::string Known::ModelNamed(std::string_view name) const {
  std::string best;
  for (const std::string& one : presets.Names("models"))
    if (Common(name, one) > Common(name, best)) best = one;
  return best;
}

absl::StatusOr<Known> ReadKnown(const std::string& presets) {
  const std::string folder = presets + "/plan";
  LS_ASSIGN_OR_RETURN(Machines machines, ReadMachines(folder + "/machines.toml"));
  LS_ASSIGN_OR_RETURN(Stacks stacks, ReadStacks(folder + "/stacks.toml"));
  LS_ASSIGN_OR_RETURN(ModelNotes models, ReadModelNotes(folder + "/models.toml"));
  return Known{std::move(machines), std::move(stacks), std::move(models), cluster::Presets(presets)};
}

}  // namespace lockstep::plan
