// Makes a checkpoint of Lockstep out of another system's, so that `lockstep run --checkpoint-dir` begins there. Which
// rank gets which box of which tensor is a plan; by default every rank gets every tensor whole, as data parallelism has
// it. Tensors are copied bit for bit. The script's `ckpt.restore()` finds them by name (python/lockstep/_imported.py).
//
//   LS_ASSIGN_OR_RETURN(const Saved saved, OpenSaved(disk, "/data/dcp"));
//   LS_ASSIGN_OR_RETURN(const Plan plan, MakePlan(saved, {.world_size = 4, .shards = {{"model.*", 0}}}));
//   LS_ASSIGN_OR_RETURN(const checkpoint::Point point, Import(disk, saved, plan, options, "/data/ckpt", now));
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/store.h"
#include "lockstep/reshape/saved.h"

namespace lockstep::reshape {

struct ImportOptions {
  int world_size = 1;
  bool as_saved = false;  // each rank gets what the rank of its number wrote, and what only one wrote whole
  // {pattern of names (* and ?), dimension}: split along it by torch.chunk's rule. The first that fits counts.
  std::vector<std::pair<std::string, size_t>> shards = {};
  // {begin of a name, what takes its place}: the first that fits counts. "" fits all.
  std::vector<std::pair<std::string, std::string>> renames = {};
  std::optional<int64_t> step = {};  // that was finished last; none: what the checkpoint says
};

struct PlannedPart {
  size_t tensor = 0;  // of Saved
  std::string name;   // new
  Box box;
};
using Plan = std::vector<std::vector<PlannedPart>>;  // by rank

// kInvalidArgument: what can't be, and which flag to change.
absl::StatusOr<Plan> MakePlan(const Saved& saved, const ImportOptions& options);

// The step that the checkpoint says it was taken after: as Megatron's name has it, or a value named step, iteration or
// global_step; -1: it says none.
int64_t StepOf(const Saved& saved);

// Writes it as the newest of `directory`, which is made if it is not there, and to which no run may be writing; needs
// the memory of one rank's part. `written`: UTC, for people.
absl::StatusOr<checkpoint::Point> Import(checkpoint::Disk& disk, const Saved& saved, const Plan& plan,
                                         const ImportOptions& options, const std::string& directory,
                                         const std::string& written);

}  // namespace lockstep::reshape
