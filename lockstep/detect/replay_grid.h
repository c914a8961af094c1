// Which machines replay a job together, so that two rounds name the one that is bad (ByteRobust, SOSP'25, Alg. 1).
//
// z machines stand in a grid of n rows of m. Round 1 replays each row, x div m; round 2 each column, x mod n. Two
// machines of one row differ by less than m, those of one column by a multiple of n; so with m <= n no two share both,
// and a machine whose row and column both fail is known. m is k pipelines of `unit` machines each, for tensor and
// pipeline parallelism keep their size in a replay and only data parallelism shrinks, to k.
//
// Every group of a job with pipelines has m machines, so m divides z. Without (unit 1) any number may form a group:
// the last row and some columns are then shorter, and no two machines share both all the same.
//
//   LS_ASSIGN_OR_RETURN(const ReplayGrid grid, ChooseReplayGrid(24, 4));   // 6 rows of 4
//   grid.Rows()[3];                                                        // {12, 13, 14, 15}
//   grid.Columns()[1];                                                     // {1, 7, 13, 19}
#pragma once

#include <optional>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::detect {

// Numbers of machines, ascending unless said otherwise.
using Machines = std::vector<int>;

struct ReplayGrid {
  int machines = 0;  // z
  int unit = 1;      // machines of one pipeline
  int m = 1;         // machines of a row, of a multiple of unit
  int n = 1;         // rows, and columns

  // False: machines share a row and a column, by m / n; a third round has to tell them apart.
  bool unique() const { return m <= n; }
  std::vector<Machines> Rows() const;
  std::vector<Machines> Columns() const;
};

// `pipelines` (k): so many in a row; nullopt: the most with which m <= n, for the more take part, the more of a job's
// communication is replayed. kInvalidArgument, with what would do: machines that don't form whole pipelines, fewer than
// two groups, a k that doesn't divide them or with which m > n. A job of fewer pipelines than a pipeline has machines
// has no k with m <= n: it gets k = 1, which is not unique().
absl::StatusOr<ReplayGrid> ChooseReplayGrid(int machines, int unit, std::optional<int> pipelines = std::nullopt);

}  // namespace lockstep::detect
