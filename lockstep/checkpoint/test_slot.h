// Test support: slots as a worker leaves them, with every dtype and awkward sizes.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/client/client.h"

namespace lockstep::checkpoint {

struct TestSlot {
  std::vector<std::byte> content;
  uint64_t meta_bytes = 0;
  SlotImage image() const { return {content, meta_bytes, ls_crc32c(0, content.data(), content.size())}; }
};

// A slot with the given tensors, filled at random.
inline TestSlot MakeSlotOf(const std::vector<Tensor>& tensors, uint32_t seed) {
  Json table = Json::array();
  uint64_t offset = 0, end = 0;
  for (const Tensor& tensor : tensors) {
    Json entry = {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}};
    entry["offset"] = offset;
    entry["bytes"] = SizeOf(tensor).value();
    if (!tensor.torch.empty()) entry["torch"] = ParseJson(tensor.torch);
    end = offset + SizeOf(tensor).value();
    offset = ls_align(end);
    table.push_back(std::move(entry));
  }
  const std::string text = OneLine(table);
  const uint64_t length = text.size();
  std::string meta(reinterpret_cast<const char*>(&length), sizeof(length));
  meta += text + "what only Python reads " + std::to_string(seed);
  TestSlot slot;
  slot.meta_bytes = meta.size();
  slot.content.resize(tensors.empty() ? meta.size() : ls_align(meta.size()) + end);
  std::memcpy(slot.content.data(), meta.data(), meta.size());
  std::mt19937 random(seed);
  uint64_t at = ls_align(meta.size());
  for (const Json& entry : table) {
    at = ls_align(at);
    for (uint64_t i = 0; i < entry["bytes"]; ++i) slot.content[at++] = static_cast<std::byte>(random());
  }
  return slot;
}

inline Tensor MakeTensor(std::string name, std::string dtype, std::vector<uint64_t> shape, std::string torch = "") {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = std::move(dtype);
  tensor.shape = std::move(shape);
  tensor.torch = std::move(torch);
  return tensor;
}

inline TestSlot MakeTestSlot(uint32_t seed) {
  return MakeSlotOf({MakeTensor("flag", "BOOL", {3}), MakeTensor("weight", "F32", {4, 5 + seed % 7}),
                     MakeTensor("none", "F64", {0, 4}), MakeTensor("step", "I64", {}),
                     MakeTensor("odd", "U8", {48}, R"({"dtype":"complex128","shape":[3],"strides":null})"),
                     MakeTensor("half", "BF16", {7})},
                    seed);
}

// The slots of `ranks` ranks, and what Store::WritePart takes.
struct TestCheckpoint {
  TestCheckpoint(uint64_t epoch, int64_t step, uint32_t ranks = 2) : point{EpochId(epoch), StepId(step)} {
    for (uint32_t rank = 0; rank < ranks; ++rank)
      slots.push_back(MakeTestSlot(static_cast<uint32_t>(step) * 100 + rank));
  }
  Part part(size_t first, size_t count) const {
    Part some{point, first, {}};
    for (size_t rank = first; rank < first + count; ++rank) some.slots.push_back(slots[rank].image());
    return some;
  }
  Part whole() const { return part(0, slots.size()); }
  Point point;
  std::vector<TestSlot> slots;
};

inline bool Always() { return true; }

// All that a checkpoint needs, part after part.
inline absl::Status Write(Store& store, const std::vector<Part>& parts, const GoOn& go_on = Always) {
  Manifest manifest{parts.front().point, "test", "2026-01-01T00:00:00Z", "", {}};
  for (const Part& part : parts) {
    LS_ASSIGN_OR_RETURN(const std::vector<ManifestFile> files, store.WritePart(part, go_on));
    manifest.files.insert(manifest.files.end(), files.begin(), files.end());
  }
  return store.Seal(manifest, go_on);
}
inline absl::Status Write(Store& store, const TestCheckpoint& checkpoint) {
  return Write(store, std::vector<Part>{checkpoint.whole()});
}

// The checkpoint as it comes back; empty if it can't be loaded.
inline std::vector<std::vector<std::byte>> LoadAll(const Store& store, const Point& point) {
  std::vector<std::vector<std::byte>> slots;
  const auto manifest = store.ReadManifest(point);
  if (!manifest.ok()) return {};
  const absl::Status status = store.Load(*manifest, 0, manifest->files.size(),
                                         [&](size_t, const ManifestFile& file) -> absl::StatusOr<std::span<std::byte>> {
                                           return slots.emplace_back(file.slot_bytes);
                                         });
  return status.ok() ? slots : std::vector<std::vector<std::byte>>();
}

inline bool Holds(const Store& store, const TestCheckpoint& checkpoint) {
  const auto slots = LoadAll(store, checkpoint.point);
  if (slots.size() != checkpoint.slots.size()) return false;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    if (slots[rank] != checkpoint.slots[rank].content) return false;
  }
  return true;
}

// The newest that can be loaded; nothing if none can.
inline std::optional<Point> NewestWhole(const Store& store) {
  const auto points = store.List();
  if (!points.ok()) return std::nullopt;
  for (const Point& point : *points) {
    if (!LoadAll(store, point).empty()) return point;
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
