#include "lockstep/checkpoint/table.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/json_text.h"
#include "lockstep/client/client.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::pair<std::string_view, uint64_t> kElements[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}, {"C64", 8}};

constexpr uint64_t kMostBytes = uint64_t{1} << 62U;  // of a slot: no sum of two such overflows

absl::StatusOr<std::vector<Tensor>> Parse(std::string_view text) {
  const absl::StatusOr<Json> table = ReadJson(text);
  if (!table.ok()) return DataLoss("the table of tensors: {}", Message(table.status()));
  if (!table->is_array()) return DataLoss("the table of tensors is not a JSON array");
  std::vector<Tensor> tensors;
  try {
    for (const Json& entry : *table) {
      Tensor tensor;
      entry.at("name").get_to(tensor.name);
      entry.at("offset").get_to(tensor.slot_offset);
      entry.at("bytes").get_to(tensor.bytes);
      entry.at("dtype").get_to(tensor.dtype);
      entry.at("shape").get_to(tensor.shape);
      if (entry.contains("torch")) tensor.torch = OneLine(entry.at("torch"));
      tensors.push_back(std::move(tensor));
    }
  } catch (const Json::exception& error) {
    return DataLoss("tensor {} of the table: {}", tensors.size(), error.what());
  }
  return tensors;
}

absl::Status CheckSizes(const std::vector<Tensor>& tensors) {
  std::set<std::string> names = {"__metadata__"};
  for (const Tensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) return DataLoss("tensor {} comes twice in the table", tensor.name);
    LS_ASSIGN_OR_RETURN(const uint64_t size, SizeOf(tensor));
    if (size != tensor.bytes)
      return DataLoss("tensor {} has {} bytes, its dtype and shape make {}", tensor.name, tensor.bytes, size);
  }
  return absl::OkStatus();
}

// Moves the offsets from the first tensor to the begin of the slot.
absl::Status Place(std::vector<Tensor>& tensors, uint64_t meta_bytes, uint64_t slot_bytes) {
  if (slot_bytes > kMostBytes) return DataLoss("no slot has {} bytes", slot_bytes);
  uint64_t end = meta_bytes;
  for (Tensor& tensor : tensors) {
    if (tensor.slot_offset > slot_bytes || tensor.bytes > slot_bytes)
      return DataLoss("tensor {} lies outside the {} bytes of its slot", tensor.name, slot_bytes);
    tensor.slot_offset += ls_align(meta_bytes);
    if (tensor.slot_offset != ls_align(end))
      return DataLoss("tensor {} lies at {}, expected {}", tensor.name, tensor.slot_offset, ls_align(end));
    end = tensor.slot_offset + tensor.bytes;
  }
  if (end != slot_bytes) return DataLoss("the table ends at {}, the slot at {}", end, slot_bytes);
  return absl::OkStatus();
}

}  // namespace

uint64_t ElementBytes(const std::string& dtype) {
  for (const auto& [name, bytes] : kElements) {
    if (dtype == name) return bytes;
  }
  return 0;
}

absl::StatusOr<uint64_t> SizeOf(const Tensor& tensor) {
  uint64_t size = ElementBytes(tensor.dtype);
  if (size == 0) return DataLoss("tensor {} has the unknown dtype {}", tensor.name, tensor.dtype);
  for (const uint64_t length : tensor.shape) {
    if (__builtin_mul_overflow(size, length, &size)) return DataLoss("the shape of {} is too large", tensor.name);
  }
  return size;
}

absl::StatusOr<std::vector<Tensor>> ReadTable(std::span<const std::byte> meta, uint64_t slot_bytes) {
  uint64_t length = 0;
  if (meta.size() >= sizeof(length)) std::memcpy(&length, meta.data(), sizeof(length));
  if (meta.size() < sizeof(length) || length > meta.size() - sizeof(length))
    return DataLoss("the meta part of {} bytes holds no table of tensors: another client wrote it", meta.size());
  const auto* text = reinterpret_cast<const char*>(meta.data()) + sizeof(length);
  LS_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, Parse({text, length}));
  LS_RETURN_IF_ERROR(CheckSizes(tensors));
  LS_RETURN_IF_ERROR(Place(tensors, meta.size(), slot_bytes));
  return tensors;
}

}  // namespace lockstep::checkpoint
