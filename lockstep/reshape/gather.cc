#include "lockstep/reshape/gather.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/reshape/dtype.h"
#include "lockstep/reshape/zip.h"

namespace lockstep::reshape {
namespace {

uint64_t Distance(std::span<const uint64_t> from, std::span<const uint64_t> to, std::span<const uint64_t> strides) {
  uint64_t distance = 0;
  for (size_t d = 0; d < from.size(); ++d) distance += (to[d] - from[d]) * strides[d];
  return distance;
}

// How far the last element of a box that is not empty lies behind the first.
uint64_t Reach(std::span<const uint64_t> sizes, std::span<const uint64_t> strides) {
  uint64_t reach = 0;
  for (size_t d = 0; d < sizes.size(); ++d) reach += (sizes[d] - 1) * strides[d];
  return reach;
}

bool IsEmpty(const Box& box) { return std::find(box.sizes.begin(), box.sizes.end(), 0U) != box.sizes.end(); }

// The shards that have some of the box, each box once.
std::vector<const Shard*> Sources(const SavedTensor& tensor, const Box& box) {
  std::vector<const Shard*> sources;
  for (const Shard& shard : tensor.shards) {
    const bool again = std::any_of(sources.begin(), sources.end(), [&](const Shard* s) { return s->box == shard.box; });
    if (!again && Common(shard.box, box)) sources.push_back(&shard);
  }
  return sources;
}

}  // namespace

void CopyBox(const std::byte* from, std::span<const uint64_t> from_strides, std::byte* to,
             std::span<const uint64_t> to_strides, std::span<const uint64_t> count, uint64_t element_bytes) {
  if (count.empty()) {
    std::memcpy(to, from, element_bytes);
  } else if (count.size() == 1 && from_strides[0] == 1 && to_strides[0] == 1) {
    std::memcpy(to, from, count[0] * element_bytes);
  } else {
    for (uint64_t i = 0; i < count[0]; ++i)
      CopyBox(from + i * from_strides[0] * element_bytes, from_strides.subspan(1),
              to + i * to_strides[0] * element_bytes, to_strides.subspan(1), count.subspan(1), element_bytes);
  }
}

absl::StatusOr<std::vector<std::byte>> Gatherer::ReadStorage(const Shard& shard, uint64_t begin, uint64_t bytes) {
  LS_ASSIGN_OR_RETURN(const Slice file, WholeFile(disk_, saved_.folder + "/" + shard.file));
  if (!file.Holds(shard.storage_at, shard.storage_bytes))
    return DataLoss("{}: it has {} bytes, expected {} at {}", file.path, file.bytes, shard.storage_bytes,
                    shard.storage_at);
  const std::pair storage_of(shard.file, shard.storage_at);
  const bool compare = shard.crc32 && !compared_.contains(storage_of);
  std::vector<std::byte> storage(compare ? shard.storage_bytes : bytes);
  LS_RETURN_IF_ERROR(file.Read(shard.storage_at + (compare ? 0 : begin), storage));
  bytes_read_ += storage.size();
  if (!compare) return storage;
  LS_RETURN_IF_ERROR(CompareSum({&disk_, file.path, shard.storage_at, shard.storage_bytes}, storage, shard.crc32));
  compared_.insert(storage_of);
  const auto first = storage.begin() + static_cast<std::ptrdiff_t>(begin);
  return std::vector<std::byte>(first, first + static_cast<std::ptrdiff_t>(bytes));
}

absl::Status Gatherer::Read(const SavedTensor& tensor, const Box& box, std::span<std::byte> out) {
  const uint64_t element = DtypeOf(tensor.dtype)->bytes;
  LS_CHECK(Fits(box, tensor.shape), "{} of {}", Named(box), tensor.name);
  if (IsEmpty(box)) return absl::OkStatus();
  const std::vector<const Shard*> sources = Sources(tensor, box);
  SavedTensor cut{tensor.name, tensor.dtype, box.sizes, {}};  // what they have of the box, as if that were all
  for (const Shard* shard : sources) {
    Box common = *Common(shard->box, box);
    std::transform(common.offsets.begin(), common.offsets.end(), box.offsets.begin(), common.offsets.begin(),
                   std::minus<>());
    cut.shards.push_back({.box = std::move(common)});
  }
  if (const auto problems = FindProblems(cut); !problems.empty())
    return DataLoss("{}: {} of {}", saved_.folder, problems.front(), Named(box));
  const std::vector<uint64_t> strides = DenseStrides(box.sizes);
  for (const Shard* shard : sources) {
    const Box common = *Common(shard->box, box);
    const uint64_t first = Distance(shard->box.offsets, common.offsets, shard->strides) * element;
    const uint64_t bytes = (Reach(common.sizes, shard->strides) + 1) * element;
    LS_ASSIGN_OR_RETURN(const std::vector<std::byte> piece,
                        ReadStorage(*shard, shard->at - shard->storage_at + first, bytes));
    CopyBox(piece.data(), shard->strides, out.data() + Distance(box.offsets, common.offsets, strides) * element,
            strides, common.sizes, element);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::reshape
