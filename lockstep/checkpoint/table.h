// The table of tensors that opens the meta part of a slot (docs/formats/board.md): what lies where, without pickle.
// Invariants of a table that was read: names differ; the tensors lie in order, each at the next multiple of 64, the
// last one ends where the slot ends; shape x dtype is the size. Pure.
//
//   LS_ASSIGN_OR_RETURN(const std::vector<Tensor> tensors, ReadTable(meta, slot_bytes));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

struct Tensor {
  std::string name;
  std::string dtype;  // as safetensors names it
  std::vector<uint64_t> shape;
  uint64_t slot_offset = 0;
  uint64_t file_offset = 0;  // in the data of a safetensors file
  uint64_t bytes = 0;
  std::string torch;  // JSON of what it really is; empty: as dtype and shape say
};

// Bytes of one element; 0: no dtype of safetensors.
uint64_t ElementBytes(const std::string& dtype);
// Shape x dtype; an error names the tensor.
absl::StatusOr<uint64_t> SizeOf(const Tensor& tensor);

// In the order of the slot. `meta` is the whole meta part of a slot of `slot_bytes` bytes.
absl::StatusOr<std::vector<Tensor>> ReadTable(std::span<const std::byte> meta, uint64_t slot_bytes);

}  // namespace lockstep::checkpoint
