#include "lockstep/prepare/measured_set.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/prepare/folder.h"

namespace lockstep::prepare {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLeastPerPass = 512;  // a small directory is gone through several times, with other crops

absl::StatusOr<std::string> MakeTemporaryFolder() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  std::string name = (error ? fs::path("/tmp") : base) / "lockstep-feed-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) return Errno(errno, "{}", name);
  return name;
}

}  // namespace

MeasuredSet::~MeasuredSet() {
  std::error_code ignored;  // nothing can be done about what stays
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

absl::StatusOr<MeasuredSet> MeasuredSet::Open(const MeasureOptions& options) {
  MeasuredSet set;
  set.seed_ = options.seed;
  LS_ASSIGN_OR_RETURN(set.source_, OpenFolder(options.directory));
  const uint64_t all = set.source_->size(), count = std::min(all, options.images);
  for (uint64_t i = 0; i < count; ++i) set.items_.push_back(i * all / count);
  set.LeaveOut(options.limits);
  if (set.items_.empty())
    return InvalidArgument("{}: none of {} images can be decoded; {}", options.directory, count,
                           set.left_out_.begin()->first);
  set.rounds_ = (kLeastPerPass + set.items_.size() - 1) / set.items_.size();
  LS_RETURN_IF_ERROR(set.WriteTiled(options.limits));
  return set;
}

void MeasuredSet::LeaveOut(const Limits& limits) {
  Preparer preparer(limits);
  Buffer bytes;
  Image image;
  std::vector<uint64_t> good;
  for (const uint64_t item : items_) {
    absl::Status status = source_->Read(item, bytes);
    if (status.ok()) status = preparer.Decode(bytes.bytes(), image);
    if (!status.ok()) {
      ++left_out_[Message(status)];
      continue;
    }
    good.push_back(item);
    bytes_ += static_cast<double>(bytes.size());
    width_ += image.view.size.width;
    height_ += image.view.size.height;
  }
  items_ = std::move(good);
  const double count = std::max(static_cast<double>(items_.size()), 1.0);
  for (double* mean : {&bytes_, &width_, &height_}) *mean /= count;
}

absl::Status MeasuredSet::WriteTiled(const Limits& limits) {
  LS_ASSIGN_OR_RETURN(folder_, MakeTemporaryFolder());
  Buffer bytes, converted;
  for (size_t i = 0; i < items_.size(); ++i) {
    LS_RETURN_IF_ERROR(source_->Read(items_[i], bytes));
    const Bytes written = WithTileIndex(bytes.bytes(), limits, converted, index_counts_);
    ++index_counts_.images;
    index_counts_.bytes_before += bytes.size();
    index_counts_.bytes_after += written.size();
    const std::string path = fmt::format("{}/{:09}.jpg", folder_, i);  // in the order of items_
    LS_RETURN_IF_ERROR(WriteFileAtomically(path, {reinterpret_cast<const char*>(written.data()), written.size()}));
  }
  LS_ASSIGN_OR_RETURN(tiled_, OpenFolder(folder_));
  return absl::OkStatus();
}

Json MeasuredSet::Description() const {
  uint64_t left_out = 0;
  Json reasons = Json::object();
  for (const auto& [reason, count] : left_out_) {
    left_out += count;
    reasons[reason] = count;
  }
  Json not_taken = Json::object();
  for (const auto& [name, count] : source_->counters()) not_taken[name] = count;
  return Json{{"images", items_.size()},     {"not_taken", not_taken},         {"left_out", left_out},
              {"left_out_because", reasons}, {"mean_bytes", bytes_},           {"mean_width", width_},
              {"mean_height", height_},      {"preparations_per_pass", size()}};
}

}  // namespace lockstep::prepare
