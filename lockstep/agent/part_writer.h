// Writes what this node's ranks hold of a checkpoint to disk, beside the training, and what it keeps of one for other
// nodes. The slots are pinned on the board meanwhile, so ranks skip steps rather than overwrite them. A disk that takes
// too long for a part is given up and the pin released. Invariant: at most one thread writes; while one hangs, none is
// begun. Lives in the poller's thread.
//
//   writer.Begin(write_part, board, buffers, kept);
//   for (const control::PartWritten& part : writer.Tick(board)) ... // done, or not: the answers to Begin
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/flight.h"
#include "lockstep/agent/spec.h"
#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/control/link.h"
#include "lockstep/keep/store.h"

namespace lockstep::agent {

using MakeDisk = std::function<std::unique_ptr<checkpoint::Disk>()>;  // called in the thread that uses it
using RanksBuffers = std::map<int, RankBuffers>;
using KeptImages = std::vector<std::shared_ptr<const keep::Image>>;  // by ward; nullptr: it is not kept here

class PartWriter {
 public:
  PartWriter(const RunSpec& spec, const Clock& clock, MakeDisk make_disk = checkpoint::PosixDisk)
      : spec_(spec), clock_(clock), make_disk_(std::move(make_disk)) {}

  // False: it is at work on another one, of a flush that nobody waits for any more; ask again when that is answered.
  bool Begin(const control::WritePart& command, ls_board& board, const RanksBuffers& buffers,
             const KeptImages& kept = {});
  std::vector<control::PartWritten> Tick(ls_board& board);
  void GiveUp(const std::string& why);

 private:
  struct Writing {
    Flight flight;
    Nanos begun;
    std::shared_ptr<std::vector<std::vector<checkpoint::ManifestFile>>> files;  // the flight's answers
  };
  void Answer(const std::string& error);
  Seconds Limit() const { return spec_.checkpoint_flush_limit * static_cast<double>(answers_.size()); }
  std::string WhyNot(const KeptImages& kept);

  const RunSpec& spec_;
  const Clock& clock_;
  MakeDisk make_disk_;
  std::optional<Writing> writing_;
  std::optional<Flight> hung_;
  bool pinned_ = false;
  control::WritePart told_;
  std::vector<control::PartWritten> answers_;  // for our own ranks, then by ward
};

}  // namespace lockstep::agent
