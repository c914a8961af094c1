// Who is who under `srun`: what Slurm's environment says of a job step that has one task on each of several nodes.
//
//   if (const std::optional<SlurmStep> step = FindSlurmStep()) ... step->node, step->first_node
#pragma once

#include <optional>
#include <string>

namespace lockstep::cli {

struct SlurmStep {
  int nodes = 1;
  int node = 0;  // this one
  std::string node_name;
  std::string first_node;  // the name of node 0
  int job = 0;
};

// nullopt: not under srun, or a step of another shape (one node, or several tasks on a node): nothing is guessed.
std::optional<SlurmStep> FindSlurmStep();

// "node003" of "node[003-010,12],x".
std::string FirstHost(const std::string& host_list);

}  // namespace lockstep::cli
