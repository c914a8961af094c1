// Brings this node's part of a checkpoint into new buffers, before workers start: the newest one on disk that is whole
// for its ranks, or the one that its keeper has. May take a while: for the background thread.
//
//   Loaded loaded = LoadNewest(spec, not_above, UntilItPassed(clock, note, pause));
//   if (loaded.point) ...                                      // in the poller's thread
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/spec.h"
#include "lockstep/base/clock.h"
#include "lockstep/client/commit.h"
#include "lockstep/control/link.h"
#include "lockstep/keep/outline.h"

namespace lockstep::agent {

struct Loaded {
  std::optional<checkpoint::Point> point;  // none: nothing there, or nothing whole
  std::vector<keep::SlotHeader> slots;     // by rank of this node
  std::vector<RankBuffers> buffers;        // the checkpoint is in slot 0
  size_t written_by = 0;                   // not 0: so many ranks wrote it, it stays on disk, and the script cuts it
  std::string from;                        // for people: a directory, a node
  bool on_disk = true;
  std::vector<std::string> rejected;  // a sentence for each checkpoint that was passed over
  std::string unfit;      // the newest one is of another world, and this one can't take it, or it can't be read: why
  bool may_pass = false;  // why it is unfit: an error of reading that may be over soon
};

// Asked after an attempt that failed by what may pass, with why; pauses: whether to try once more.
using Again = std::function<bool(const std::string& why)>;
// A second later, for 45 s from now. Notes why at once. `pause` waits for so long; its no ends it, too.
Again UntilItPassed(const Clock& clock, std::function<void(const std::string& text)> note,
                    std::function<bool(Seconds)> pause);

Loaded LoadNewest(const RunSpec& spec, const checkpoint::Point& not_above, const Again& again = {});
Loaded LoadKept(const RunSpec& spec, const control::FetchKept& question, const std::stop_token& stop);

// What the board says of the loaded checkpoint: done, in slot 0 of every rank, and nothing else; of one that the script
// cuts anew, nothing but how many ranks wrote it. No worker runs.
void MarkLoaded(ls_board& board, const Loaded& loaded, uint32_t world_size);

// This checkpoint, wherever it is, is of a world of so many ranks from now on; all others are given up. No worker runs.
void AdoptSlots(ls_board& board, const ls_checkpoint& id, uint32_t world_size);

// The epoch with which a run on this directory begins: above those of all checkpoints there.
absl::StatusOr<uint64_t> FirstEpoch(const RunSpec& spec, const Again& again = {});
// An error if the newest one there is of another world size, or can't be read. What may pass is left to LoadNewest.
absl::Status CheckNewest(const RunSpec& spec);

}  // namespace lockstep::agent
