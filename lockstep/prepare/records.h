// Arrays of one shape, one behind the other in a file: item i is the i-th along the first dimension of a .npy file, of
// a tensor of a safetensors file, or the i-th window of a token file.
#pragma once

#include <string_view>

#include "lockstep/prepare/data_file.h"
#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

// Where the items of a file lie; item i at offset + i * stride.
struct RecordLayout {
  uint64_t offset = 0, stride = 0, count = 0;
  ItemFormat format;
};

// Fills in the bytes of an item, of elements of so many bytes; an error unless all items lie within the `data_bytes`
// behind layout.offset.
absl::StatusOr<RecordLayout> FinishLayout(RecordLayout layout, uint64_t element_bytes, uint64_t data_bytes);

// From the first bytes of a file that has so many in all.
absl::StatusOr<RecordLayout> ParseNpy(Bytes head, uint64_t file_bytes);
// `name` may be empty if there is only one tensor. `json`: the header, behind its length.
absl::StatusOr<RecordLayout> ParseSafetensors(std::string_view json, const std::string& name, uint64_t file_bytes);
absl::Status CheckTokens(int token_bytes, uint64_t tokens_per_item, uint64_t file_bytes);
absl::StatusOr<RecordLayout> LayoutTokens(int token_bytes, uint64_t tokens_per_item, uint64_t file_bytes);
// The head of a .npy file, read and parsed.
absl::StatusOr<RecordLayout> NpyLayout(const DataFile& file);

absl::StatusOr<std::unique_ptr<Source>> OpenNpy(DataFile file);
absl::StatusOr<std::unique_ptr<Source>> OpenSafetensors(DataFile file, const std::string& tensor);
// Items overlap by one token: the target of an item's last token is the first of the next.
absl::StatusOr<std::unique_ptr<Source>> OpenTokens(DataFile file, int token_bytes, uint64_t tokens_per_item);

// Tokens of an item as torch wants them; out.size() is their number.
void WidenTokens(Bytes tokens, int token_bytes, std::span<int64_t> out);

}  // namespace lockstep::prepare
