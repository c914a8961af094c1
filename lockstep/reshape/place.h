// The place of a sharded tensor's part, as a worker notes it in the layout of its slot (docs/formats/board.md).
#pragma once

#include <optional>

#include "lockstep/base/report.h"
#include "lockstep/reshape/saved.h"

namespace lockstep::reshape {

struct Placed {
  std::vector<uint64_t> shape;  // of the whole
  Box box;
};

// `place`: ["shard", shape, offsets, sizes], or ["dtensor", shape, placements, mesh, where in the mesh the rank
// stands]; without the last the mesh counts all ranks in order. `local`: the shape of the part. kInvalidArgument: it is
// neither, or one that can't be told (Partial).
absl::StatusOr<Placed> PlaceOf(const Json& place, const std::vector<uint64_t>& local, int rank, int world_size);

}  // namespace lockstep::reshape
