// The flags of `lockstep plan`, and what they ask: a model and its work on one or more clusters.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/plan/machines.h"
#include "lockstep/plan/search.h"

namespace lockstep::cli {

struct PlanFlags {
  std::string model, layout, stack, calibration, objective = "throughput", space = "usual", training = "full",
                                                 stages = "any", shard = "any", failures, emit, out;
  std::vector<int> moe_chunks = {1};
  std::vector<std::string> clusters, precisions = {"bf16"}, compare, explain, schedules = {"1f1b"}, offloads = {"none"},
                                     freeze;
  int batch = 0, sequence = 0;
  double usd_per_hour = 0, power_w = 0;
  unsigned threads = 0;
  size_t top = 5;
  bool json = false;
};

struct PlanQuestion {
  std::vector<plan::Cluster> clusters;  // at least one; with each precision that it has, of those asked for
  plan::Machines machines;
  plan::Objective objective;
  plan::SearchSpace space;
  std::string model_note;  // what to know of how the model was read; empty: nothing
};
// {model_note, machine_note}: what to know of how the model was read, and of units of a machine's figures; those that
// there are.
Json NotesOf(const PlanQuestion& question);

// "NAME:N" with the rates of the machine and the stack; nothing of a model yet. `calibration`: a folder; empty: the
// presets.
absl::StatusOr<plan::Cluster> ClusterNamed(const std::string& text, const plan::Machines& known,
                                           const std::string& stack, const std::string& calibration);
absl::StatusOr<plan::Machines> KnownMachines();

// Of the model, the cluster and the software; the flags of what is asked about them are elsewhere.
void AddWork(CLI::App& command, PlanFlags& flags);

// kInvalidArgument: flags that do not go together, a figure in another unit; NotFound: a model, machine or file.
absl::StatusOr<PlanQuestion> AskedBy(const PlanFlags& flags);

}  // namespace lockstep::cli
