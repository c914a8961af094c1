// torchrun's command line as `lockstep run` understands it: every option of PyTorch 1.13 and 2.x, with dashes or
// underscores, each also as $PET_<NAME> (the flag wins). What has no effect here gives one line; what can't be honoured
// is one error. docs/from-torchrun.md is the table for users.
//
//   TorchrunFlags flags;
//   flags.Declare(*run);                                      // before parsing
//   LS_RETURN_IF_ERROR(flags.Apply(options));                 // after it; lines go to options.notices
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <set>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/cli/slurm.h"
#include "lockstep/node/options.h"

namespace lockstep::cli {

// "2" or "1:4".
struct NodeCount {
  int least = 1, most = 1;
};
absl::StatusOr<NodeCount> ParseNodeCount(const std::string& text);

class TorchrunFlags {
 public:
  // The parser keeps references to this object.
  void Declare(CLI::App& run);
  absl::Status Apply(node::RunOptions& options) const;

 private:
  bool Given(const std::string& name) const;  // on the command line or by $PET_<NAME>
  bool On(const std::string& name) const;     // of a switch
  // "" when it was not given.
  std::string Text(const std::string& name) const;
  // `otherwise` when it was not given.
  absl::StatusOr<int> Number(const std::string& name, int least, int otherwise) const;

  std::string SetByVariables() const;
  absl::Status ApplyAll(node::RunOptions& options) const;
  bool IsStatic() const;  // the rendezvous backend: torchrun's default
  absl::Status ApplyNodes(node::RunOptions& options) const;
  void FollowSlurm(const SlurmStep& step, node::Nodes& nodes) const;
  absl::Status ApplyEndpoint(node::Nodes& nodes) const;
  absl::Status ApplyCoordinators(node::Nodes& nodes) const;
  absl::Status ApplyRanks(node::RunOptions& options) const;
  absl::Status ApplyRendezvous(node::RunOptions& options) const;
  static absl::Status ApplyRendezvousConf(const std::string& conf, node::RunOptions& options);
  absl::Status ApplyStart(node::RunOptions& options) const;
  absl::StatusOr<std::set<int>> RanksShown(node::RunOptions& options) const;
  absl::Status ApplyOutput(node::RunOptions& options) const;
  absl::Status ApplySignals(node::RunOptions& options) const;
  void NoteWithoutEffect(node::RunOptions& options) const;

  const CLI::App* run_ = nullptr;
  std::map<std::string, std::string> texts_;  // a map, for its references last
  std::map<std::string, bool> switches_;
};

}  // namespace lockstep::cli
