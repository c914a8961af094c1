// What plan knows beside the rates: machines, software stacks, and what tables of measured runs leave out about models.
// From presets/plan/, and the models of presets/models/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/cluster/presets.h"
#include "lockstep/plan/machines.h"
#include "lockstep/plan/stacks.h"

namespace lockstep::plan {

class ModelNotes {
 public:
  struct Note {
    std::vector<std::string> names;
    int hidden = 0;  // of another width it is another model
    int layers = 1, dense_layers = 0, shared_experts = 0;
    int head_dim = 0;  // of latent attention
    cluster::LatentAttention latent;
    cluster::Window window;
  };
  explicit ModelNotes(std::vector<Note> all = {}) : all_(std::move(all)) {}
  // Of a model whose name begins with one that is known: its dense layers, shared experts, latent attention and
  // windows. One with fewer layers than it should have keeps its share of the dense ones, at least one, and of those
  // with a window.
  void Complete(std::string_view name, Workload& workload) const;

 private:
  std::vector<Note> all_;
};

struct Known {
  Machines machines;
  Stacks stacks;
  ModelNotes models;
  cluster::Presets presets;
  // The preset whose name a model's begins with, the longest; "": none.
  std::string ModelNamed(std::string_view name) const;
};

absl::StatusOr<Known> ReadKnown(const std::string& presets);

}  // namespace lockstep::plan
