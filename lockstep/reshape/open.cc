#include "lockstep/reshape/open.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/number.h"
#include "lockstep/reshape/dcp.h"
#include "lockstep/reshape/own.h"
#include "lockstep/reshape/torch_file.h"

namespace lockstep::reshape {
namespace {

using Names = std::vector<std::string>;

constexpr char kCommon[] = "common.pt";  // Megatron's, of what is not sharded
constexpr char kLatest[] = "latest_checkpointed_iteration.txt";
constexpr std::string_view kModelParallel = "mp_rank_";

bool Has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void Join(Saved& saved, TorchFile&& file) {
  std::move(file.tensors.begin(), file.tensors.end(), std::back_inserter(saved.tensors));
  std::move(file.values.begin(), file.values.end(), std::back_inserter(saved.values));
  std::move(file.passed_over.begin(), file.passed_over.end(), std::back_inserter(saved.passed_over));
}

absl::Status AddFile(checkpoint::Disk& disk, const std::string& file, const std::string& name, Saved& saved) {
  LS_ASSIGN_OR_RETURN(const Slice whole, WholeFile(disk, saved.folder + "/" + file));
  LS_ASSIGN_OR_RETURN(TorchFile read, ReadTorchFile(whole, file, name));
  if (!read.has_sums) saved.passed_over.push_back(SaysNoSums(whole.path));
  Join(saved, std::move(read));
  return absl::OkStatus();
}

// As AddFile; one whose pickle is whole but not of tensors and plain values is passed over, and one of before
// torch 1.6.
absl::Status AddFileIfPlain(checkpoint::Disk& disk, const std::string& file, const std::string& name, Saved& saved) {
  absl::Status status = AddFile(disk, file, name, saved);
  if (!absl::IsInvalidArgument(status)) return status;
  saved.passed_over.push_back(Message(status));
  return absl::OkStatus();
}

absl::StatusOr<Saved> OpenFile(checkpoint::Disk& disk, const std::string& path) {
  const size_t slash = path.rfind('/');
  Saved saved{.kind = "torch", .folder = slash == std::string::npos ? "." : path.substr(0, slash)};
  LS_RETURN_IF_ERROR(AddFile(disk, path.substr(slash + 1), "", saved));
  return saved;
}

absl::StatusOr<Saved> OpenDcp(checkpoint::Disk& disk, const std::string& folder, const Names& names) {
  LS_ASSIGN_OR_RETURN(Saved saved, ReadDcp(disk, folder));
  if (Has(names, kCommon)) LS_RETURN_IF_ERROR(AddFileIfPlain(disk, kCommon, "common", saved));
  return saved;
}

// mp_rank_TT[_PPP]/NAME.pt, one folder for each part of the model.
absl::StatusOr<Saved> OpenModelParallel(checkpoint::Disk& disk, const std::string& folder, Names names) {
  Saved saved{.kind = "torch", .folder = folder};
  std::sort(names.begin(), names.end());
  for (const std::string& part : names) {
    if (!part.starts_with(kModelParallel)) continue;
    LS_ASSIGN_OR_RETURN(Names files, disk.List(folder + "/" + part));
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
      if (!file.ends_with(".pt")) continue;
      const std::string name = part + "." + file.substr(0, file.size() - 3);
      LS_RETURN_IF_ERROR(AddFileIfPlain(disk, part + "/" + file, name, saved));
    }
  }
  return saved;
}

// The newest that is whole by what is read of it; what is not is told.
absl::StatusOr<Saved> OpenNewest(checkpoint::Disk& disk, const std::string& directory) {
  const checkpoint::Store store(disk, directory);
  LS_ASSIGN_OR_RETURN(const std::vector<checkpoint::Point> points, store.List());
  if (points.empty())
    return NotFound(
        "{}: no checkpoint that is known here: expected a file of torch.save, or a folder with "
        ".metadata, mp_rank_... or manifest.json in it, or with step_... as Lockstep has them",
        directory);
  absl::Status newest;
  Names damaged;
  for (const checkpoint::Point& point : points) {
    absl::Status status = store.ReadManifest(point).status();  // of this step by its name too
    auto saved = status.ok() ? ReadOwn(disk, directory + "/" + checkpoint::DirectoryName(point)) : status;
    if (saved.ok()) {
      saved->passed_over.insert(saved->passed_over.begin(), damaged.begin(), damaged.end());
      return saved;
    }
    newest.Update(saved.status());
    if (!checkpoint::MeansDamage(saved.status())) break;  // it may be whole
    damaged.push_back(Message(saved.status()));
  }
  return newest;
}

absl::StatusOr<Saved> OpenFolder(checkpoint::Disk& disk, const std::string& folder, const Names& names);

// The file has one number, or "release".
absl::StatusOr<Saved> OpenLatest(checkpoint::Disk& disk, const std::string& directory) {
  LS_ASSIGN_OR_RETURN(const Slice file, WholeFile(disk, directory + "/" + kLatest));
  LS_ASSIGN_OR_RETURN(std::string text, file.Text(0, std::min<uint64_t>(file.bytes, 32)));
  text.erase(std::find_if(text.begin(), text.end(), [](char c) { return c <= ' '; }), text.end());
  const int64_t iteration = WholeNumber<int64_t>(text).value_or(-1);
  const bool number = iteration >= 0;
  if (!number && text != "release") return DataLoss("{}: \"{}\" is no iteration", file.path, text);
  const std::string folder = directory + "/" + (number ? fmt::format("iter_{:07}", iteration) : text);
  LS_ASSIGN_OR_RETURN(const Names names, disk.List(folder));
  if (Has(names, kLatest)) return DataLoss("{}: it names itself", file.path);
  LS_ASSIGN_OR_RETURN(Saved saved, OpenFolder(disk, folder, names));
  if (number) saved.step = iteration;
  return saved;
}

absl::StatusOr<Saved> OpenFolder(checkpoint::Disk& disk, const std::string& folder, const Names& names) {
  if (Has(names, kDcpMetadata)) return OpenDcp(disk, folder, names);
  if (Has(names, kLatest)) return OpenLatest(disk, folder);
  const auto is_part = [](const std::string& name) { return name.starts_with(kModelParallel); };
  if (std::any_of(names.begin(), names.end(), is_part)) return OpenModelParallel(disk, folder, names);
  if (Has(names, checkpoint::kManifestFile)) return ReadOwn(disk, folder);
  return OpenNewest(disk, folder);
}

bool IsUtf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

// Each name once, and in UTF-8: else no document could hold it.
absl::Status CheckNames(const Saved& saved) {
  std::set<std::string_view> names;
  const auto check = [&](const std::string& name) {
    if (!IsUtf8(name)) return DataLoss("{}: the name \"{}\" is not UTF-8", saved.folder, absl::CHexEscape(name));
    if (!names.insert(name).second) return DataLoss("{}: two things are named {}", saved.folder, name);
    return absl::OkStatus();
  };
  for (const SavedTensor& tensor : saved.tensors) LS_RETURN_IF_ERROR(check(tensor.name));
  for (const SavedValue& value : saved.values) LS_RETURN_IF_ERROR(check(value.name));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Saved> OpenSaved(checkpoint::Disk& disk, const std::string& path) {
  std::string place = path;
  while (place.size() > 1 && place.ends_with('/')) place.pop_back();
  const auto names = disk.List(place);
  LS_ASSIGN_OR_RETURN(Saved saved, names.ok() ? OpenFolder(disk, place, *names) : OpenFile(disk, place));
  LS_RETURN_IF_ERROR(CheckNames(saved));
  return saved;
}

}  // namespace lockstep::reshape
