// Which checkpoint the next epoch loads: the newest one that is committed (lockstep/client/commit.h) and whose content
// verifies on every rank. A slot that does not verify is marked BAD, so the next best is tried and no worker reads it;
// one that can't be read here is passed over alone.
// Call while no worker runs. Cost: one CRC pass over the chosen checkpoint, a thread per rank.
//
//   RestoreChoices choices = FindRestores(*board, slots, 1);   // slots[rank]: its buffers; empty if it has none
//   for (const Point& point : choices.points) ...
//   for (const std::string& sentence : choices.rejected) ...
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/ids.h"
#include "lockstep/client/board.h"

namespace lockstep::checkpoint {

struct Point {
  EpochId epoch;
  StepId step;
  auto operator<=>(const Point&) const = default;
};

// One rank's slots as they are mapped here. Neither is owned.
struct RankSlots {
  std::span<const std::byte> slot[LS_SLOTS];
};

struct RestoreChoices {
  std::vector<Point> points;  // newest first; none: begin afresh
  std::vector<std::string>
      rejected;  // "rank 2: checkpoint of step 117: CRC 0x1234abcd, expected 0x99887766, over 1048576 bytes"
};

// Up to `most` of them. Requires slots.size() == board.ranks. Marks bad slots in `board`.
RestoreChoices FindRestores(ls_board& board, std::span<const RankSlots> slots, size_t most);

}  // namespace lockstep::checkpoint
