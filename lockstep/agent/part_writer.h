// Writes what this node's ranks hold of a checkpoint to disk, beside the training. The slots are pinned on the board
// meanwhile, so ranks skip steps rather than overwrite them. A disk that takes too long is given up and the pin
// released. Invariant: at most one thread writes; while one hangs, none is begun. Lives in the poller's thread.
//
//   writer.Begin(point, board, buffers);
//   if (const auto written = writer.Tick(board)) ... // done, or not: the answer to Begin
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/flight.h"
#include "lockstep/agent/spec.h"
#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/disk.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/control/link.h"

namespace lockstep::agent {

using MakeDisk = std::function<std::unique_ptr<checkpoint::Disk>()>;  // called in the thread that uses it
using RanksBuffers = std::map<int, RankBuffers>;

class PartWriter {
 public:
  PartWriter(const RunSpec& spec, const Clock& clock, MakeDisk make_disk = checkpoint::PosixDisk)
      : spec_(spec), clock_(clock), make_disk_(std::move(make_disk)) {}

  // False: it is at work on another one, of a flush that nobody waits for any more; ask again when that is answered.
  bool Begin(const control::CheckpointId& point, ls_board& board, const RanksBuffers& buffers);
  std::optional<control::PartWritten> Tick(ls_board& board);
  void GiveUp(const std::string& why);

 private:
  struct Writing {
    Flight flight;
    Nanos begun;
    std::shared_ptr<std::vector<checkpoint::ManifestFile>> files;  // the flight's answer
  };
  void Answer(const std::string& error);

  const RunSpec& spec_;
  const Clock& clock_;
  MakeDisk make_disk_;
  std::optional<Writing> writing_;
  std::optional<Flight> hung_;
  bool pinned_ = false;
  std::optional<control::PartWritten> answer_;
};

}  // namespace lockstep::agent
