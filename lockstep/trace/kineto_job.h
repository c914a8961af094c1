// A job as a graph, from what its ranks did (trace/kineto.h). The ranks of a role run the same sequence of
// communications. Lanes are (step, rank), and an op of one role is absent in the lanes of the others; but where all
// ranks stand in pipelines (trace/kineto_pipelines.h), lanes are (step, pipeline), and a role is of one stage.
//
// On each rank all that is not communication is one stream of compute. It is cut where a communication takes its input
// (behind the last compute that was launched before it) and where compute waited for one (it stood idle until that
// ended). docs/models/explain.md has the rules.
//
// Communications of ranks are matched by group and order, or sequence number, and accepted only if they end together
// once the clocks are fitted; what does not is left single and counted, never guessed.
#pragma once

#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/clocks.h"
#include "lockstep/trace/kineto.h"
#include "lockstep/trace/straggler_sink.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

struct KinetoJob {
  TracedJob job;  // without pipelines of one stage; its data-parallel ranks are the ranks given, in their order
  std::vector<int> ranks;
  int world_size = 0;
  std::vector<int> absent_ranks;               // of which no file was given
  std::vector<int> lacking_steps;              // ranks without some steps that others have: those steps are left out
  std::vector<ClockOffset> clocks;             // of each rank given
  std::vector<std::vector<int>> absent_peers;  // of each op: absent ranks that take part in it
  std::vector<bool> has_peers;                 // of each op: other ranks, given, are known to take part in it
};

// kInvalidArgument: a rank twice, files of different jobs, no step that all have, ranks whose steps have no common
// form.
absl::StatusOr<KinetoJob> BuildKinetoJob(std::vector<KinetoRank> ranks, const std::vector<StepRange>& steps);

}  // namespace lockstep::trace
