// What a checkpoint holds, whoever wrote it: tensors by name, each with the boxes of it that lie in files, and plain
// values. Invariants of what a reader of this part gives: names differ; a shard's box lies in the tensor's shape and
// its bytes in a file that is there; no size overflows. Whether the boxes make up the whole tensor is FindProblems' to
// say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::reshape {

// Of a tensor; of one without dimensions, empty.
struct Box {
  std::vector<uint64_t> offsets, sizes;
  bool operator==(const Box&) const = default;
};

struct Shard {
  Box box = {};
  std::vector<uint64_t> strides = {};  // in elements, of the bytes as they lie
  std::string file = {};               // below the checkpoint's folder
  uint64_t at = 0;                     // byte of the file at which its first element lies
  int rank = -1;                       // that wrote it; -1: not known
  // The storage that it lies in, of which other tensors may be a part, too.
  uint64_t storage_at = 0, storage_bytes = 0;
  std::optional<uint32_t> crc32 = {};  // of the storage, where its archive has one
};

struct SavedTensor {
  std::string name;
  std::string dtype;  // as torch names it
  std::vector<uint64_t> shape;
  std::vector<Shard> shards;
};

struct SavedValue {
  std::string name;
  std::string json;
};

struct Saved {
  std::string kind = {};    // "dcp", "torch", "lockstep"
  std::string folder = {};  // of the files
  std::optional<int64_t> step = {};
  int world_size = 0;  // that wrote it; 0: not known
  std::vector<SavedTensor> tensors = {};
  std::vector<SavedValue> values = {};
  std::vector<std::string> passed_over = {};  // what is neither, a sentence each
};

// Elements of a box or shape; an error if they, or their bytes, are more than a number can say.
absl::StatusOr<uint64_t> Elements(const std::vector<uint64_t>& sizes, uint64_t element_bytes);
// Bytes of the whole tensor.
uint64_t BytesOf(const SavedTensor& tensor);
// Strides of C order.
std::vector<uint64_t> DenseStrides(const std::vector<uint64_t>& sizes);
// The box of all of it.
Box WholeOf(const std::vector<uint64_t>& shape);
// Leaves of this dimension the part of this number, as torch.chunk cuts: all but the last parts are equally large, and
// those may be empty. Requires parts > 0.
void TakeChunk(Box& box, size_t dimension, uint64_t part, uint64_t parts);
// Whether the box lies in the shape; and has as many dimensions.
bool Fits(const Box& box, const std::vector<uint64_t>& shape);
// What two boxes share; nothing if that is no element.
std::optional<Box> Common(const Box& a, const Box& b);
// "[0:4, 8:16]"
std::string Named(const Box& box);

// What keeps a tensor from being whole: elements that no shard has, or that two different boxes have. A box that is
// there several times is copies of one. A sentence each.
std::vector<std::string> FindProblems(const SavedTensor& tensor);

}  // namespace lockstep::reshape
