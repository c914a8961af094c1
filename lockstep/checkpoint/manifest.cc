#include "lockstep/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/json_text.h"
#include "lockstep/base/number.h"
#include "lockstep/client/client.h"

namespace lockstep::checkpoint {
namespace {

constexpr char kFormat[] = "lockstep checkpoint";
constexpr char kSum[] = "crc32c";

// Of all its other fields, in their order and without spaces.
uint32_t SumOf(Json json) {
  json.erase(kSum);
  const std::string text = OneLine(json);  // as RenderJson writes it
  return ls_crc32c(0, text.data(), text.size());
}

Json FileJson(const ManifestFile& file) {
  Json json = {{"name", file.name},
               {"bytes", file.bytes},
               {"crc32c", file.crc32c},
               {"slot_bytes", file.slot_bytes},
               {"slot_meta_bytes", file.slot_meta_bytes},
               {"slot_crc32c", file.slot_crc32c},
               {"slot_proof", file.slot_proof}};
  if (!file.tensors.empty()) json["tensors"] = file.tensors;
  if (file.replica) json["replica"] = true;
  if (file.cut) json["cut"] = true;
  return json;
}

ManifestFile FileFromJson(const Json& json) {
  ManifestFile file;
  json.at("name").get_to(file.name);
  json.at("bytes").get_to(file.bytes);
  json.at("crc32c").get_to(file.crc32c);
  json.at("slot_bytes").get_to(file.slot_bytes);
  json.at("slot_meta_bytes").get_to(file.slot_meta_bytes);
  json.at("slot_crc32c").get_to(file.slot_crc32c);
  file.slot_proof = json.value("slot_proof", 0u);
  if (json.contains("tensors")) json.at("tensors").get_to(file.tensors);
  if (json.contains("replica")) json.at("replica").get_to(file.replica);
  if (json.contains("cut")) json.at("cut").get_to(file.cut);
  return file;
}

Manifest Read(const Json& json) {
  Manifest manifest;
  manifest.point = {EpochId(json.at("epoch").get<uint64_t>()), StepId(json.at("step").get<int64_t>())};
  json.at("job").get_to(manifest.job);
  json.at("written").get_to(manifest.written);
  if (json.contains("layout")) manifest.layout = OneLine(json.at("layout"));
  for (const Json& file : json.at("files")) manifest.files.push_back(FileFromJson(file));
  return manifest;
}

absl::Status Check(const Manifest& manifest, const Json& json) {
  if (manifest.files.empty() || json.at("world_size").get<size_t>() != manifest.files.size())
    return DataLoss("world_size does not fit the {} files", manifest.files.size());
  for (size_t rank = 0; rank < manifest.files.size(); ++rank) {
    const ManifestFile& file = manifest.files[rank];
    if (file.name != RankFileName(rank))
      return DataLoss("file {} is \"{}\", expected {}", rank, file.name, RankFileName(rank));
    if (file.slot_meta_bytes > file.slot_bytes) return DataLoss("{}: slot_meta_bytes exceeds slot_bytes", file.name);
  }
  return absl::OkStatus();
}

template <typename Number>
std::optional<Number> TakeNumberBehind(std::string_view before, std::string_view& text) {
  if (!text.starts_with(before)) return std::nullopt;
  text.remove_prefix(before.size());
  return TakeNumber<Number>(text);
}

}  // namespace

bool AreReplicas(const Manifest& manifest) {
  if (manifest.files.empty()) return false;
  if (std::ranges::all_of(manifest.files, &ManifestFile::replica)) return true;
  const std::string& first = manifest.files.front().tensors;
  const auto alike = [&](const ManifestFile& file) { return file.tensors == first; };
  return !first.empty() && std::ranges::all_of(manifest.files, alike);
}

bool AreCutAnew(const Manifest& manifest) {
  return !manifest.files.empty() && std::ranges::all_of(manifest.files, &ManifestFile::cut);
}

std::string DirectoryName(const Point& point) {
  return fmt::format("step_{:012}_epoch_{}", point.step.value(), point.epoch.value());
}

std::optional<Point> PointOf(const std::string& directory_name) {
  std::string_view text = directory_name;
  const auto step = TakeNumberBehind<int64_t>("step_", text);
  const auto epoch = TakeNumberBehind<uint64_t>("_epoch_", text);
  if (!step || !epoch) return std::nullopt;
  const Point point{EpochId(*epoch), StepId(*step)};
  if (DirectoryName(point) != directory_name) return std::nullopt;
  return point;
}

std::string RankFileName(size_t rank) { return fmt::format("rank_{:05}.safetensors", rank); }

Json ToJson(const Manifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", kManifestVersion},
               {"step", manifest.point.step.value()},
               {"epoch", manifest.point.epoch.value()},
               {"world_size", manifest.files.size()},
               {"job", manifest.job},
               {"written", manifest.written}};
  if (!manifest.layout.empty()) json["layout"] = ParseJson(manifest.layout);
  json["files"] = Json::array();
  for (size_t rank = 0; rank < manifest.files.size(); ++rank) {
    json["files"].push_back(FileJson(manifest.files[rank]));
    json["files"].back()["rank"] = rank;
  }
  json[kSum] = SumOf(json);
  return json;
}

std::string FilesText(const std::vector<ManifestFile>& files) {
  Json json = Json::array();
  for (const ManifestFile& file : files) json.push_back(FileJson(file));
  return OneLine(json);
}

absl::StatusOr<std::vector<ManifestFile>> FilesFromText(const std::string& text) {
  const Json json = ParseJson(text);
  if (!json.is_array()) return DataLoss("a part's list of files is not a JSON array");
  try {
    std::vector<ManifestFile> files;
    for (const Json& file : json) files.push_back(FileFromJson(file));
    return files;
  } catch (const Json::exception& error) {
    return DataLoss("{}", error.what());
  }
}

absl::StatusOr<Manifest> ManifestFromJson(const std::string& text) {
  const absl::StatusOr<Json> read = ReadJson(text);
  if (!read.ok()) return DataLoss("{}", Message(read.status()));
  const Json& json = *read;
  if (!json.is_object()) return DataLoss("not a JSON object");
  try {
    if (json.at("format").get<std::string>() != kFormat) return DataLoss("its format is not \"{}\"", kFormat);
    const int version = json.at("version").get<int>();
    if (version < kManifestVersion) return DataLoss("there is no format version {}", version);
    if (version > kManifestVersion)
      return FailedPrecondition("it has format version {}, this Lockstep reads {}: use the newer Lockstep", version,
                                kManifestVersion);
    if (json.contains(kSum)) {  // older ones have none
      const uint32_t expected = json.at(kSum).get<uint32_t>(), found = SumOf(json);
      if (found != expected) return DataLoss("it has CRC {:#010x}, expected {:#010x}", found, expected);
    }
    Manifest manifest = Read(json);
    LS_RETURN_IF_ERROR(Check(manifest, json));
    return manifest;
  } catch (const Json::exception& error) {
    return DataLoss("{}", error.what());
  }
}

}  // namespace lockstep::checkpoint
