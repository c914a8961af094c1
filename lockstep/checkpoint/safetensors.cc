#include "lockstep/checkpoint/safetensors.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr char kMetadata[] = "__metadata__", kMeta[] = "lockstep.meta", kTorch[] = "lockstep.torch";

std::string Base64(std::span<const std::byte> bytes) {
  return absl::Base64Escape(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// What the tensors really are, where safetensors can't say it.
Json TorchOf(const std::vector<Tensor>& tensors) {
  Json torch = Json::object();
  for (const Tensor& tensor : tensors) {
    if (!tensor.torch.empty()) torch[tensor.name] = ParseJson(tensor.torch);
  }
  return torch;
}

absl::StatusOr<std::vector<std::byte>> ReadMeta(const nlohmann::json& head) {
  const auto metadata = head.find(kMetadata);
  if (metadata == head.end() || !metadata->is_object() || !metadata->contains(kMeta))
    return DataLoss("it has no {}: it was not written by Lockstep", kMeta);
  std::string meta;
  if (!(*metadata)[kMeta].is_string() || !absl::Base64Unescape((*metadata)[kMeta].get<std::string>(), &meta))
    return DataLoss("{} is not base64", kMeta);
  const auto* begin = reinterpret_cast<const std::byte*>(meta.data());
  return std::vector<std::byte>(begin, begin + meta.size());
}

std::vector<Tensor> ReadTensors(const nlohmann::json& head) {
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : head.items()) {
    if (name == kMetadata) continue;
    Tensor tensor;
    tensor.name = name;
    entry.at("dtype").get_to(tensor.dtype);
    entry.at("shape").get_to(tensor.shape);
    tensor.file_offset = entry.at("data_offsets").at(0).get<uint64_t>();
    tensor.bytes = entry.at("data_offsets").at(1).get<uint64_t>() - tensor.file_offset;
    tensors.push_back(std::move(tensor));
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.file_offset, a.bytes) < std::pair(b.file_offset, b.bytes);
  });
  return tensors;
}

absl::Status CheckCover(const std::vector<Tensor>& tensors, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    LS_ASSIGN_OR_RETURN(const uint64_t size, SizeOf(tensor));
    if (tensor.file_offset != end || tensor.bytes != size || size > data_bytes - end)
      return DataLoss("tensor {} lies at {} with {} bytes, expected {} with {}", tensor.name, tensor.file_offset,
                      tensor.bytes, end, size);
    end += size;
  }
  if (end != data_bytes) return DataLoss("its tensors have {} bytes, the file has {} for them", end, data_bytes);
  return absl::OkStatus();
}

}  // namespace

std::vector<Tensor> FileOrder(std::vector<Tensor> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const Tensor& a, const Tensor& b) { return ElementBytes(a.dtype) > ElementBytes(b.dtype); });
  uint64_t end = 0;
  for (Tensor& tensor : tensors) {
    tensor.file_offset = end;
    end += tensor.bytes;
  }
  return tensors;
}

absl::StatusOr<std::string> RenderHead(const std::vector<Tensor>& order, std::span<const std::byte> meta) {
  Json head;
  head[kMetadata] = {{"format", "pt"}, {kTorch, TorchOf(order).dump()}, {kMeta, Base64(meta)}};
  Json::object_t& entries = head.get_ref<Json::object_t&>();
  for (const Tensor& tensor : order) {  // by push: looking names up in an ordered object is linear
    const uint64_t end = tensor.file_offset + tensor.bytes;
    Json entry = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.file_offset, end}}};
    entries.Container::emplace_back(tensor.name, std::move(entry));
  }
  std::string text = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (text.size() > kMaxHead)
    return InvalidArgument(
        "the state beside the tensors makes a head of {} bytes, the format allows {}: keep long "
        "histories in tensors",
        text.size(), kMaxHead);
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

absl::StatusOr<uint64_t> HeadBytes(std::span<const std::byte> first8, uint64_t file_bytes) {
  uint64_t length = 0;
  if (first8.size() < kLengthBytes || file_bytes < kLengthBytes)
    return DataLoss("{} bytes are no safetensors file", file_bytes);
  std::memcpy(&length, first8.data(), sizeof(length));
  if (length > kMaxHead || length > file_bytes - kLengthBytes)
    return DataLoss("its head claims {} bytes, the file has {}", length, file_bytes);
  return length + kLengthBytes;
}

absl::StatusOr<Head> ParseHead(std::span<const std::byte> text, uint64_t file_bytes) {
  Head head;
  head.data_begin = text.size();
  const auto* begin = reinterpret_cast<const char*>(text.data());
  // Not as a Json, which looks names up one by one. However deep: nothing of it is copied, or written.
  const auto json = nlohmann::json::parse(begin + kLengthBytes, begin + text.size(), nullptr, false);
  if (!json.is_object()) return DataLoss("its head is not a JSON object");
  LS_ASSIGN_OR_RETURN(head.meta, ReadMeta(json));
  try {
    head.tensors = ReadTensors(json);
  } catch (const nlohmann::json::exception& error) {
    return DataLoss("its head: {}", error.what());
  }
  LS_RETURN_IF_ERROR(CheckCover(head.tensors, file_bytes - head.data_begin));
  return head;
}

}  // namespace lockstep::checkpoint
