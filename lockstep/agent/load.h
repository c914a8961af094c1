// Brings this node's part of a checkpoint from disk into new buffers, before workers start: the newest one that is
// whole for its ranks. May take a while: for the background thread.
//
//   Loaded loaded = LoadNewest(spec, not_above);
//   if (loaded.manifest) Publish(loaded, link);                // in the poller's thread
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/spec.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::agent {

struct Loaded {
  std::optional<checkpoint::Manifest> manifest;  // none: nothing there, or nothing whole
  std::vector<RankBuffers> buffers;              // by rank of this node: the checkpoint is in slot 0
  std::vector<std::string> rejected;             // a sentence for each checkpoint that was passed over
};

Loaded LoadNewest(const RunSpec& spec, const checkpoint::Point& not_above);

// What the board says of the loaded checkpoint: done, in slot 0 of every rank, and nothing else. No worker runs.
void MarkLoaded(ls_board& board, const checkpoint::Manifest& manifest);

// The epoch with which a run on this directory begins: above those of all checkpoints there.
absl::StatusOr<uint64_t> FirstEpoch(const RunSpec& spec);
// An error if the newest one there is of another world size.
absl::Status CheckNewest(const RunSpec& spec);

}  // namespace lockstep::agent
