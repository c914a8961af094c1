#include "lockstep/reshape/saved.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/reshape/dtype.h"

namespace lockstep::reshape {
namespace {

constexpr uint64_t kMostCompared = 1ULL << 26U;  // pairs of shards of one tensor: a fraction of a second

std::vector<Box> DistinctBoxes(const SavedTensor& tensor) {
  std::vector<Box> boxes;
  for (const Shard& shard : tensor.shards) {
    if (std::find(shard.box.sizes.begin(), shard.box.sizes.end(), 0U) == shard.box.sizes.end())
      boxes.push_back(shard.box);
  }
  const auto key = [](const Box& box) { return std::tie(box.offsets, box.sizes); };
  std::sort(boxes.begin(), boxes.end(), [&](const Box& a, const Box& b) { return key(a) < key(b); });
  boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
  return boxes;
}

// The dimension along which most of them begin at different places: sorted by it, only neighbours can meet.
size_t WidestDimension(const std::vector<Box>& boxes) {
  size_t widest = 0, most = 0;
  for (size_t d = 0; d < boxes.front().offsets.size(); ++d) {
    std::set<uint64_t> begins;
    for (const Box& box : boxes) begins.insert(box.offsets[d]);
    if (begins.size() > most) std::tie(widest, most) = std::pair(d, begins.size());
  }
  return widest;
}

// A sentence; empty: none meet.
std::string FindOverlap(std::vector<Box> boxes) {
  if (boxes.size() < 2 || boxes.front().offsets.empty()) return "";
  const size_t d = WidestDimension(boxes);
  std::stable_sort(boxes.begin(), boxes.end(), [d](const Box& a, const Box& b) { return a.offsets[d] < b.offsets[d]; });
  uint64_t compared = 0;
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j].offsets[d] < boxes[i].offsets[d] + boxes[i].sizes[d]; ++j) {
      if (++compared > kMostCompared) return fmt::format("its {} shards are too many to compare", boxes.size());
      if (Common(boxes[i], boxes[j]))
        return fmt::format("its shards {} and {} overlap", Named(boxes[i]), Named(boxes[j]));
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<uint64_t> Elements(const std::vector<uint64_t>& sizes, uint64_t element_bytes) {
  // Of what is as large as it can be, even where another dimension is 0: so products of some of the sizes are safe,
  // too.
  uint64_t count = 1, largest = element_bytes;
  for (const uint64_t size : sizes) {
    if (__builtin_mul_overflow(largest, std::max<uint64_t>(size, 1), &largest) || largest > uint64_t{INT64_MAX})
      return DataLoss("sizes of more than 2^63 bytes");
    count *= size;
  }
  return count;
}

uint64_t BytesOf(const SavedTensor& tensor) {
  const Dtype* dtype = DtypeOf(tensor.dtype);
  LS_CHECK(dtype != nullptr, "{}", tensor.dtype);
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), dtype->bytes, std::multiplies<>());
}

std::vector<uint64_t> DenseStrides(const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<uint64_t>(sizes[d], 1);
  return strides;
}

Box WholeOf(const std::vector<uint64_t>& shape) { return {std::vector<uint64_t>(shape.size(), 0), shape}; }

void TakeChunk(Box& box, size_t dimension, uint64_t part, uint64_t parts) {
  uint64_t& size = box.sizes[dimension];
  const uint64_t chunk = size / parts + (size % parts != 0 ? 1 : 0);
  const uint64_t begin = std::min(size, chunk * part);
  box.offsets[dimension] += begin;
  size = std::min(chunk, size - begin);
}

bool Fits(const Box& box, const std::vector<uint64_t>& shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.sizes[d] > shape[d] || box.offsets[d] > shape[d] - box.sizes[d]) return false;
  }
  return true;
}

std::optional<Box> Common(const Box& a, const Box& b) {
  Box common = a;
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    const uint64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const uint64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) return std::nullopt;
    common.offsets[d] = begin;
    common.sizes[d] = end - begin;
  }
  return common;
}

std::string Named(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.offsets.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.offsets[d], box.offsets[d] + box.sizes[d]);
  return text + "]";
}

std::vector<std::string> FindProblems(const SavedTensor& tensor) {
  std::vector<std::string> problems;
  const std::vector<Box> boxes = DistinctBoxes(tensor);
  const uint64_t all = Elements(tensor.shape, 1).value_or(0);
  uint64_t covered = 0;
  for (const Box& box : boxes) covered += Elements(box.sizes, 1).value_or(0);
  if (const std::string overlap = FindOverlap(boxes); !overlap.empty()) {
    problems.push_back(fmt::format("{}: {}", tensor.name, overlap));
  } else if (covered < all) {
    problems.push_back(fmt::format("{}: {} of its {} elements are in no shard", tensor.name, all - covered, all));
  }
  return problems;
}

}  // namespace lockstep::reshape
