#include "lockstep/reshape/place.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/number.h"

namespace lockstep::reshape {
namespace {

using Sizes = std::vector<uint64_t>;

// "(Shard(dim=0), Replicate())", one for each dimension of the mesh: the dimensions of the tensor that it splits, -1
// where it does not; nothing if it can't be told.
std::optional<std::vector<int>> SplitDimensions(std::string_view text) {
  std::vector<int> dimensions;
  while (!text.empty()) {
    constexpr std::string_view kShard = "Shard(dim=", kReplicate = "Replicate()";
    if (text.starts_with(kShard)) {
      text.remove_prefix(kShard.size());
      const std::optional<int> dimension = TakeNumber<int>(text);
      if (!dimension || *dimension < 0) return std::nullopt;
      dimensions.push_back(*dimension);
    } else if (text.starts_with(kReplicate)) {
      dimensions.push_back(-1);
      text.remove_prefix(kReplicate.size());
    } else if (std::string_view("(), ").find(text.front()) != std::string_view::npos) {
      text.remove_prefix(1);
    } else {
      return std::nullopt;  // Partial, _StridedShard
    }
  }
  return dimensions;
}

// Where the rank stands in each dimension of a mesh that counts all ranks in order, of which the last counts fastest.
std::optional<Sizes> CoordinatesInOrder(const Sizes& mesh, int rank, int world_size) {
  uint64_t left = static_cast<uint64_t>(rank), all = 1;
  Sizes at(mesh.size());
  for (size_t d = mesh.size(); d-- > 0;) {
    if (mesh[d] == 0 || __builtin_mul_overflow(all, mesh[d], &all)) return std::nullopt;
    at[d] = left % mesh[d];
    left /= mesh[d];
  }
  return all == static_cast<uint64_t>(world_size) ? std::optional(at) : std::nullopt;
}

// As it is noted; older checkpoints don't say it.
std::optional<Sizes> Coordinates(const Json& place, const Sizes& mesh, int rank, int world_size) {
  if (place.size() <= 4) return CoordinatesInOrder(mesh, rank, world_size);
  const auto at = place.at(4).get<Sizes>();
  const bool lies_in_mesh = std::equal(at.begin(), at.end(), mesh.begin(), mesh.end(), std::less<>());
  return lies_in_mesh ? std::optional(at) : std::nullopt;
}

// torch.chunk's rule, applied for each dimension of the mesh to what the one before has left.
Placed Split(const Sizes& shape, const std::vector<int>& dimensions, const Sizes& mesh, const Sizes& at) {
  Placed placed{shape, WholeOf(shape)};
  for (size_t m = 0; m < mesh.size(); ++m) {
    if (dimensions[m] >= 0) TakeChunk(placed.box, static_cast<size_t>(dimensions[m]), at[m], mesh[m]);
  }
  return placed;
}

absl::StatusOr<Placed> OfMesh(const Json& place, int rank, int world_size) {
  const auto shape = place.at(1).get<Sizes>(), mesh = place.at(3).get<Sizes>();
  const auto text = place.at(2).get<std::string>();
  const auto dimensions = SplitDimensions(text);
  const auto at = Coordinates(place, mesh, rank, world_size);
  const bool known =
      dimensions && at && dimensions->size() == mesh.size() &&
      std::all_of(dimensions->begin(), dimensions->end(), [&](int d) { return d < static_cast<int>(shape.size()); });
  if (!known)
    return InvalidArgument("{} on a mesh of [{}] in a world of {} can't be told apart", text, fmt::join(mesh, ", "),
                           world_size);
  LS_RETURN_IF_ERROR(Elements(shape, 16).status());
  return Split(shape, *dimensions, mesh, *at);
}

}  // namespace

absl::StatusOr<Placed> PlaceOf(const Json& place, const Sizes& local, int rank, int world_size) {
  try {
    absl::StatusOr<Placed> placed = InvalidArgument("its place is not known here");
    if (place.at(0) == "dtensor") placed = OfMesh(place, rank, world_size);
    if (place.at(0) == "shard")
      placed = Placed{place.at(1).get<Sizes>(), {place.at(2).get<Sizes>(), place.at(3).get<Sizes>()}};
    LS_RETURN_IF_ERROR(placed.status());
    if (!Fits(placed->box, placed->shape) || placed->box.sizes != local)
      return InvalidArgument("its place, [{}] of [{}], does not fit its shape [{}]", fmt::join(placed->box.sizes, ", "),
                             fmt::join(placed->shape, ", "), fmt::join(local, ", "));
    return placed;
  } catch (const Json::exception& error) {
    return InvalidArgument("its place: {}", error.what());
  }
}

}  // namespace lockstep::reshape
