// The head of a safetensors file: 8 bytes of length, then JSON that says which tensor lies where in the data behind it
// (github.com/huggingface/safetensors). Ours also carries the meta part of the slot, in base64, so that the slot can be
// rebuilt byte for byte. Pure.
//
//   const std::vector<Tensor> order = FileOrder(table);                  // with their file_offset
//   LS_ASSIGN_OR_RETURN(const std::string head, RenderHead(order, meta));
//   LS_ASSIGN_OR_RETURN(const Head head, ParseHead(text, file_bytes));
#pragma once

#include "lockstep/checkpoint/table.h"

namespace lockstep::checkpoint {

// Of the format; a head of more bytes is refused by every reader.
inline constexpr uint64_t kMaxHead = 100'000'000;

// Largest elements first, so that each tensor is aligned to its elements; file_offset set, without holes.
std::vector<Tensor> FileOrder(std::vector<Tensor> tensors);
// Length and JSON, a multiple of 8 bytes. An error if that is too much for the format.
absl::StatusOr<std::string> RenderHead(const std::vector<Tensor>& order, std::span<const std::byte> meta);

struct Head {
  uint64_t data_begin = 0;      // in the file
  std::vector<Tensor> tensors;  // by file_offset; they cover the data without holes; slot_offset is not known here
  std::vector<std::byte> meta;
};

// The bytes of the whole head, from the first 8 of a file; an error if they can't be right.
absl::StatusOr<uint64_t> HeadBytes(std::span<const std::byte> first8, uint64_t file_bytes);
// `text`: that many bytes.
absl::StatusOr<Head> ParseHead(std::span<const std::byte> text, uint64_t file_bytes);

}  // namespace lockstep::checkpoint
