#include "lockstep/reshape/import.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"
#include "lockstep/client/client.h"
#include "lockstep/reshape/dtype.h"
#include "lockstep/reshape/gather.h"

namespace lockstep::reshape {
namespace {

constexpr char kFormat[] = "lockstep import";

bool Always() { return true; }

std::string Renamed(const std::string& name, const ImportOptions& options) {
  for (const auto& [from, to] : options.renames) {
    if (name.starts_with(from)) return to + name.substr(from.size());
  }
  return name;
}

// The first rule that fits the new name.
std::optional<size_t> DimensionOf(const std::string& name, const ImportOptions& options) {
  for (const auto& [pattern, dimension] : options.shards) {
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return dimension;
  }
  return std::nullopt;
}

// A rule that is of use for nothing is a mistake in it.
absl::Status CheckRules(const Saved& saved, const ImportOptions& options) {
  const auto of_any = [&](const auto& is_of_use) { return std::ranges::any_of(saved.tensors, is_of_use); };
  for (const auto& [from, to] : options.renames)
    if (!of_any([&](const SavedTensor& tensor) { return tensor.name.starts_with(from); }) &&
        std::ranges::none_of(saved.values, [&](const SavedValue& value) { return value.name.starts_with(from); }))
      return InvalidArgument("--rename {}={}: nothing's name begins so; `lockstep checkpoint inspect` has them", from,
                             to);
  for (const auto& [pattern, dimension] : options.shards)
    if (!of_any([&](const SavedTensor& tensor) {
          return fnmatch(pattern.c_str(), Renamed(tensor.name, options).c_str(), 0) == 0;
        }))
      return InvalidArgument("--shard {}={}: no tensor has such a name; of all that begin or end otherwise it is *{}*",
                             pattern, dimension, pattern);
  return absl::OkStatus();
}

std::vector<Box> BoxesOfRank(const SavedTensor& tensor, int rank) {
  std::vector<Box> boxes;
  if (tensor.shards.size() == 1) return {tensor.shards.front().box};
  for (const Shard& shard : tensor.shards) {
    if (shard.rank == rank) boxes.push_back(shard.box);
  }
  return boxes;
}

absl::StatusOr<std::vector<Box>> BoxesOf(const SavedTensor& tensor, const std::string& name, int rank,
                                         const ImportOptions& options) {
  if (options.as_saved) return BoxesOfRank(tensor, rank);
  const auto dimension = DimensionOf(name, options);
  if (!dimension) return std::vector<Box>{WholeOf(tensor.shape)};
  if (*dimension >= tensor.shape.size())
    return InvalidArgument("--shard: {} has shape [{}], and no dimension {}", name, fmt::join(tensor.shape, ", "),
                           *dimension);
  Box box = WholeOf(tensor.shape);
  TakeChunk(box, *dimension, static_cast<uint64_t>(rank), static_cast<uint64_t>(options.world_size));
  return std::vector<Box>{std::move(box)};
}

absl::Status CheckPlan(const Saved& saved, const ImportOptions& options) {
  if (saved.kind == "lockstep")
    return InvalidArgument(
        "{} is Lockstep's own: `lockstep run --checkpoint-dir` begins there as it is, and "
        "lockstep.reshape reads it in a world of another size",
        saved.folder);
  if (saved.tensors.empty()) return InvalidArgument("{} holds no tensor", saved.folder);
  if (options.as_saved && saved.world_size != options.world_size)
    return InvalidArgument("--as-saved: it was saved by {} ranks, --world is {}", saved.world_size, options.world_size);
  if (options.as_saved && !options.shards.empty()) return InvalidArgument("--as-saved and --shard exclude each other");
  for (const SavedTensor& tensor : saved.tensors) {
    if (const auto problems = FindProblems(tensor); !problems.empty())
      return DataLoss("{}: {}", saved.folder, problems.front());
  }
  return CheckRules(saved, options);
}

// One rank's slot, in the making: what docs/formats/board.md says, with a layout in JSON.
class Slot {
 public:
  Slot(const Saved& saved, const std::vector<PlannedPart>& parts, const ImportOptions& options)
      : saved_(saved), parts_(parts) {
    Json table = Json::array(), tensors = Json::array();
    std::set<std::string> taken;
    uint64_t offset = 0;
    for (const PlannedPart& part : parts) {
      const SavedTensor& tensor = saved.tensors[part.tensor];
      table.push_back(Entry(tensor, part, Unique(part.name, taken), offset));
      tensors.push_back({{"name", part.name}, {"place", PlaceJson(tensor, part.box)}});
      places_.push_back(offset);
      end_ = offset + table.back()["bytes"].get<uint64_t>();
      offset = ls_align(end_);
    }
    Json values = Json::object();
    for (const SavedValue& value : saved.values) values[Renamed(value.name, options)] = ParseJson(value.json);
    const Json layout = {{"format", kFormat}, {"version", 1}, {"tensors", std::move(tensors)}, {"values", values}};
    Append(OneLine(table));
    Append(OneLine(layout));
  }

  absl::StatusOr<std::vector<std::byte>> Fill(Gatherer& gather) const {
    const uint64_t begin = ls_align(meta_.size());
    std::vector<std::byte> content(parts_.empty() ? meta_.size() : begin + end_);
    std::memcpy(content.data(), meta_.data(), meta_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      const SavedTensor& tensor = saved_.tensors[parts_[i].tensor];
      const auto out = std::span(content).subspan(begin + places_[i], BytesOfBox(tensor, parts_[i].box));
      LS_RETURN_IF_ERROR(gather.Read(tensor, parts_[i].box, out));
    }
    return content;
  }
  uint64_t meta_bytes() const { return meta_.size(); }

 private:
  static uint64_t BytesOfBox(const SavedTensor& tensor, const Box& box) {
    return Elements(box.sizes, 1).value_or(0) * DtypeOf(tensor.dtype)->bytes;
  }
  static Json Entry(const SavedTensor& tensor, const PlannedPart& part, const std::string& name, uint64_t offset) {
    const Dtype& dtype = *DtypeOf(tensor.dtype);
    const uint64_t bytes = BytesOfBox(tensor, part.box);
    Json entry = {{"name", name}, {"offset", offset}, {"bytes", bytes}};
    entry["dtype"] = dtype.safetensors.empty() ? "U8" : dtype.safetensors;
    entry["shape"] = dtype.safetensors.empty() ? std::vector<uint64_t>{bytes} : part.box.sizes;
    if (dtype.safetensors.empty())
      entry["torch"] = {{"dtype", dtype.torch}, {"shape", part.box.sizes}, {"strides", nullptr}};
    return entry;
  }
  static Json PlaceJson(const SavedTensor& tensor, const Box& box) {
    if (box == WholeOf(tensor.shape)) return nullptr;
    return Json::array({"shard", tensor.shape, box.offsets, box.sizes});
  }
  static std::string Unique(const std::string& name, std::set<std::string>& taken) {
    std::string found = name;
    for (int number = 2; !taken.insert(found).second; ++number) found = fmt::format("{}#{}", name, number);
    return found;
  }
  void Append(const std::string& text) {
    const uint64_t bytes = text.size();
    meta_.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    meta_ += text;
  }

  const Saved& saved_;
  const std::vector<PlannedPart>& parts_;
  std::vector<uint64_t> places_;  // from the first tensor
  uint64_t end_ = 0;
  std::string meta_;
};

bool Same(const std::vector<PlannedPart>& a, const std::vector<PlannedPart>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const PlannedPart& one, const PlannedPart& other) {
    return one.tensor == other.tensor && one.box == other.box;
  });
}

// Ranks that get the same are filled once.
absl::Status WriteRanks(checkpoint::Disk& disk, checkpoint::Store& store, const Saved& saved, const Plan& plan,
                        const ImportOptions& options, checkpoint::Manifest& manifest) {
  std::vector<std::byte> content;
  checkpoint::SlotImage image;
  Gatherer gather(disk, saved);
  for (size_t rank = 0; rank < plan.size(); ++rank) {
    if (rank == 0 || !Same(plan[rank], plan[rank - 1])) {
      const Slot slot(saved, plan[rank], options);
      content = {};  // gives its memory back before the next is made
      LS_ASSIGN_OR_RETURN(content, slot.Fill(gather));
      image = {content, slot.meta_bytes(), ls_crc32c(0, content.data(), content.size())};
    }
    LS_ASSIGN_OR_RETURN(const auto files, store.WritePart({manifest.point, rank, {image}}, Always));
    manifest.files.push_back(files.front());
  }
  return store.Seal(manifest, Always);
}

absl::Status CheckNames(const Saved& saved, const ImportOptions& options) {
  std::set<std::string> tensors;
  for (const SavedTensor& tensor : saved.tensors) {
    const std::string name = Renamed(tensor.name, options);
    if (name.empty() || name == "__metadata__" || !tensors.insert(name).second)
      return InvalidArgument("--rename makes \"{}\" of {}: it must be there once, and not be empty", name, tensor.name);
  }
  std::map<std::string, std::string> values;  // by what they become
  for (const SavedValue& value : saved.values) {
    const auto [of, is_new] = values.try_emplace(Renamed(value.name, options), value.name);
    if (!is_new && of->second != value.name)
      return InvalidArgument("--rename makes \"{}\" of {} and of {}: it must be there once", of->first, of->second,
                             value.name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const Saved& saved, const ImportOptions& options) {
  LS_RETURN_IF_ERROR(CheckPlan(saved, options));
  LS_RETURN_IF_ERROR(CheckNames(saved, options));
  Plan plan(static_cast<size_t>(options.world_size));
  for (size_t rank = 0; rank < plan.size(); ++rank) {
    for (size_t i = 0; i < saved.tensors.size(); ++i) {
      const std::string name = Renamed(saved.tensors[i].name, options);
      LS_ASSIGN_OR_RETURN(std::vector<Box> boxes, BoxesOf(saved.tensors[i], name, static_cast<int>(rank), options));
      for (Box& box : boxes) plan[rank].push_back({i, name, std::move(box)});
    }
  }
  return plan;
}

int64_t StepOf(const Saved& saved) {
  if (saved.step) return *saved.step;
  for (const SavedValue& value : saved.values) {
    const bool counts = value.name == "step" || value.name == "iteration" || value.name == "global_step" ||
                        value.name == "common.iteration";
    const Json json = counts ? ParseJson(value.json) : Json();
    if (json.is_number_integer() && json.get<int64_t>() >= 0) return json.get<int64_t>();
  }
  return -1;
}

absl::StatusOr<checkpoint::Point> Import(checkpoint::Disk& disk, const Saved& saved, const Plan& plan,
                                         const ImportOptions& options, const std::string& directory,
                                         const std::string& written) {
  LS_RETURN_IF_ERROR(disk.MakeDirectory(directory));
  checkpoint::Store store(disk, directory);
  (void)store.ClearLeftovers();  // what stays the run to come tells
  LS_ASSIGN_OR_RETURN(const std::vector<checkpoint::Point> points, store.List());
  const uint64_t epoch = points.empty() ? 1 : points.front().epoch.value() + 1;
  checkpoint::Manifest manifest;
  manifest.point = {EpochId(epoch), StepId(std::max<int64_t>(options.step.value_or(StepOf(saved)), 0))};
  manifest.job = "imported";
  manifest.written = written;
  const absl::Status status = WriteRanks(disk, store, saved, plan, options, manifest);
  if (!status.ok()) {
    (void)store.Discard(manifest.point);
    return status;
  }
  return manifest.point;
}

}  // namespace lockstep::reshape
