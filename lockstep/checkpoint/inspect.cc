#include "lockstep/checkpoint/inspect.h"

#include <nlohmann/json.hpp>

namespace lockstep::checkpoint {
namespace {

Json Listed(const Store& store, const Point& point) {
  Json entry = {{"step", point.step.value()}, {"epoch", point.epoch.value()}};
  const auto manifest = store.ReadManifest(point);
  uint64_t bytes = 0;
  if (manifest.ok()) {
    for (const ManifestFile& file : manifest->files) bytes += file.bytes;
    entry["world_size"] = manifest->files.size();
    entry["bytes"] = bytes;
    entry["job"] = manifest->job;
    entry["written"] = manifest->written;
  }
  entry["state"] = manifest.ok() ? "complete" : Message(manifest.status());
  return entry;
}

absl::StatusOr<std::vector<Point>> PointsIn(const Store& store) {
  LS_ASSIGN_OR_RETURN(std::vector<Point> points, store.List());
  if (!points.empty()) return points;
  const auto manifest = store.ReadManifestHere();
  if (!manifest.ok()) return points;
  return InvalidArgument("{} is one checkpoint: expected the directory that it lies in as {}, such as {}/..",
                         store.directory(), DirectoryName(manifest->point), store.directory());
}

}  // namespace

absl::StatusOr<Json> ListReport(const Store& store) {
  LS_ASSIGN_OR_RETURN(const std::vector<Point> points, PointsIn(store));
  Json list = Json::array();
  for (const Point& point : points) list.push_back(Listed(store, point));
  return Json{{"directory", store.directory()}, {"checkpoints", std::move(list)}};
}

absl::StatusOr<Json> VerifyReport(const Store& store) {
  LS_ASSIGN_OR_RETURN(const std::vector<Point> points, PointsIn(store));
  Json list = Json::array();
  bool all = !points.empty();
  for (const Point& point : points) {
    const absl::Status status = store.Verify(point);
    if (!status.ok() && !MeansDamage(status)) return At("can't be verified", status);
    all = all && status.ok();
    list.push_back({{"step", point.step.value()},
                    {"epoch", point.epoch.value()},
                    {"valid", status.ok()},
                    {"why", status.ok() ? "" : Message(status)}});
  }
  return Json{{"directory", store.directory()}, {"valid", all}, {"checkpoints", std::move(list)}};
}

}  // namespace lockstep::checkpoint
