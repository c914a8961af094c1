// Any bytes as a checkpoint of another system: it is refused with a sentence, or it can be told of and imported. By
// their begin: "PK", a file of torch.save; "OWN" and the bytes of its slot in 32 bits, a rank's file of Lockstep; else
// the bytes of a `.metadata` in 32 bits, that, and the one file beside it.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/check.h"
#include "lockstep/base/json_text.h"
#include "lockstep/checkpoint/memory_disk.h"
#include "lockstep/reshape/import.h"
#include "lockstep/reshape/open.h"

namespace {

using namespace lockstep;

constexpr uint64_t kMost = 1 << 20;  // bytes of tensors that are copied

void Put(checkpoint::MemoryDisk& disk, const std::string& path, std::string_view content) {
  auto file = disk.Create(path);
  LS_CHECK(file.ok() && (*file)->Append(std::as_bytes(std::span(content))).ok());
}

uint32_t TakeSize(std::string_view& text) {
  uint32_t size = 0;
  std::memcpy(&size, text.data(), std::min(sizeof(size), text.size()));
  text.remove_prefix(std::min(sizeof(size), text.size()));
  return size;
}

std::string PutOwn(checkpoint::MemoryDisk& disk, std::string_view text) {
  text.remove_prefix(3);
  checkpoint::Manifest manifest;
  manifest.point = {EpochId(1), StepId(1)};
  checkpoint::ManifestFile file{.name = checkpoint::RankFileName(0)};
  file.slot_bytes = TakeSize(text);
  file.bytes = text.size();
  manifest.files.push_back(file);
  const std::string folder = "/c/" + checkpoint::DirectoryName(manifest.point);
  LS_CHECK(disk.MakeDirectory("/c").ok() && disk.MakeDirectory(folder).ok());
  Put(disk, folder + "/manifest.json", OneLine(checkpoint::ToJson(manifest)));
  Put(disk, folder + "/" + file.name, text);
  return "/c";
}

std::string PutCheckpoint(checkpoint::MemoryDisk& disk, std::string_view text) {
  if (text.starts_with("OWN")) return PutOwn(disk, text);
  if (text.starts_with("PK")) {
    Put(disk, "/x.pt", text);
    return "/x.pt";
  }
  const uint32_t said = TakeSize(text);
  const size_t bytes = std::min<size_t>(said, text.size());
  LS_CHECK(disk.MakeDirectory("/d").ok());
  Put(disk, "/d/.metadata", text.substr(0, bytes));
  Put(disk, "/d/__0_0.distcp", text.substr(bytes));
  return "/d";
}

void Use(checkpoint::MemoryDisk& disk, const reshape::Saved& saved) {
  const Json report = reshape::DetailedReport(saved);
  LS_CHECK(!OneLine(report).empty());
  LS_CHECK(!RenderText(reshape::ShortReport(saved)).empty());
  if (report["bytes"].get<uint64_t>() > kMost) return;
  const reshape::ImportOptions options{.world_size = 2, .shards = {{"*weight", 0}}};
  const auto plan = reshape::MakePlan(saved, options);
  if (!plan.ok()) return;
  const auto point = reshape::Import(disk, saved, *plan, options, "/out", "now");
  LS_CHECK(point.ok() ? checkpoint::Store(disk, "/out").Verify(*point).ok() : !point.status().message().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  checkpoint::MemoryDisk disk;
  const auto saved = reshape::OpenSaved(disk, PutCheckpoint(disk, {reinterpret_cast<const char*>(data), size}));
  if (saved.ok()) {
    Use(disk, *saved);
  } else {
    LS_CHECK(!saved.status().message().empty());
  }
  return 0;
}
