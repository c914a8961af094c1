// Which ranks form the pipelines of a job, and on which stage each is: by whom they send to and receive from.
//
// A pipeline begins at the one rank of which a send ends before any receive; the next stage is the rank that it sends
// to first, and so on. All ranks must be in pipelines of one length.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "lockstep/trace/kineto.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::trace {

// Of a rank in a step, in the order in which they ended.
using Transfers = std::vector<const Collective*>;

class Pipelines {
 public:
  // numbers: of the ranks. nullopt: they are no such pipelines.
  static std::optional<Pipelines> Find(const std::vector<int>& numbers, const std::vector<Transfers>& transfers);

  int stages() const { return static_cast<int>(ranks_.front().size()); }
  const std::vector<std::vector<size_t>>& ranks() const { return ranks_; }  // [pipeline][stage], indices
  int StageOf(size_t rank) const { return stage_of_[rank]; }
  int PipelineOf(size_t rank) const { return pipeline_of_[rank]; }
  // To the next stage is forward; an exchange with it counts as the send, one with the stage before as the receive. Of
  // the last stage the first is next, where model chunks wrap around; of two stages the second. nullopt: it is between
  // stages that are no neighbours, or pipelines.
  std::optional<OpType> TypeOf(size_t rank, const Collective& transfer) const;

 private:
  std::map<int, size_t> index_of_;  // by number
  std::vector<int> stage_of_, pipeline_of_;
  std::vector<std::vector<size_t>> ranks_;
};

// A communication between stages, in the order of launches: compute up to segment `input` makes what it sends, compute
// from segment `awaited` on waited for it.
struct TransferOfRole {
  OpType type;
  size_t input, awaited;
};
// Which microbatch each of so many segments of compute is of: from where the n-th receive of a direction was awaited up
// to what made the n-th send. -1: of none, or of several.
std::vector<int> MicrobatchesOf(size_t segments, const std::vector<TransferOfRole>& transfers);

}  // namespace lockstep::trace
