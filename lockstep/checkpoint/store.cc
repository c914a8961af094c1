#include "lockstep/checkpoint/store.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/client/client.h"

namespace lockstep::checkpoint {
namespace {

constexpr uint64_t kMaxManifest = 64 << 20;

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

absl::Status GivenUp() { return MakeError(absl::StatusCode::kCancelled, "given up"); }

// A file, and the CRC of what has gone into it.
struct Summed {
  DiskFile& file;
  ManifestFile& sums;
  const GoOn& go_on;

  absl::Status Append(std::span<const std::byte> data) {
    while (!data.empty()) {
      if (!go_on()) return GivenUp();
      const auto piece = data.first(std::min(kPiece, data.size()));
      LS_RETURN_IF_ERROR(file.Append(piece));
      sums.crc32c = ls_crc32c(sums.crc32c, piece.data(), piece.size());
      sums.bytes += piece.size();
      data = data.subspan(piece.size());
    }
    return absl::OkStatus();
  }
};

}  // namespace

bool MeansDamage(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsNotFound(status); }
bool MayPass(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsResourceExhausted(status); }

absl::StatusOr<Manifest> ReadManifestIn(Disk& disk, const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, disk.Size(path));
  if (bytes > kMaxManifest) return DataLoss("{}: {} bytes are no manifest", path, bytes);
  std::string text(bytes, '\0');
  LS_RETURN_IF_ERROR(disk.Read(path, 0, std::as_writable_bytes(std::span(text))));
  auto manifest = ManifestFromJson(text);
  if (!manifest.ok()) return At(path, manifest.status());
  for (const ManifestFile& file : manifest->files) {
    const std::string name = folder + "/" + file.name;
    LS_ASSIGN_OR_RETURN(const uint64_t found, disk.Size(name));
    if (found != file.bytes) return DataLoss("{} has {} bytes, expected {}", name, found, file.bytes);
  }
  return manifest;
}

absl::StatusOr<std::vector<Point>> Store::List() const {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_.List(directory_));
  std::vector<Point> points;
  for (const std::string& name : names) {
    if (const std::optional<Point> point = PointOf(name)) points.push_back(*point);
  }
  std::sort(points.begin(), points.end(), std::greater<>());
  return points;
}

absl::StatusOr<Manifest> Store::ReadManifest(const Point& point) const {
  LS_ASSIGN_OR_RETURN(Manifest manifest, ReadManifestIn(disk_, PathOf(point)));
  if (manifest.point == point) return manifest;
  return DataLoss("{}/{}: it is of step {} of epoch {}", PathOf(point), kManifestFile, manifest.point.step.value(),
                  manifest.point.epoch.value());
}

absl::StatusOr<RankFile> Store::Open(const Manifest& manifest, size_t rank) const {
  const ManifestFile& file = manifest.files[rank];
  return RankFile::Open(disk_, PathOf(manifest.point) + "/" + file.name, manifest.point, file);
}

absl::Status Store::Verify(const Point& point, size_t first, size_t every) const {
  LS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(point));
  for (size_t rank = first; rank < manifest.files.size(); rank += every) {
    LS_ASSIGN_OR_RETURN(const RankFile file, Open(manifest, rank));
    LS_RETURN_IF_ERROR(file.Verify());
  }
  return absl::OkStatus();
}

absl::Status Store::Load(const Manifest& manifest, size_t first_rank, size_t count, const MakeSlot& make) const {
  for (size_t rank = first_rank; rank < first_rank + count; ++rank) {
    LS_ASSIGN_OR_RETURN(const RankFile file, Open(manifest, rank));
    LS_ASSIGN_OR_RETURN(const std::span<std::byte> slot, make(rank, manifest.files[rank]));
    LS_RETURN_IF_ERROR(file.Load(slot));
  }
  return absl::OkStatus();
}

std::string Store::IncomingOf(const Point& point) const {
  return fmt::format("{}/{}{}", directory_, kIncoming, DirectoryName(point));
}

absl::StatusOr<std::vector<ManifestFile>> Store::WritePart(const Part& part, const GoOn& go_on) {
  LS_RETURN_IF_ERROR(RefuseIfStale(part.point));
  const size_t end = part.first_rank + part.slots.size();
  if (const auto whole = ReadManifest(part.point); whole.ok() && whole->files.size() >= end) {  // written before
    const auto first = whole->files.begin();
    return std::vector<ManifestFile>(first + static_cast<std::ptrdiff_t>(part.first_rank),
                                     first + static_cast<std::ptrdiff_t>(end));
  }
  const std::string folder = IncomingOf(part.point);
  LS_RETURN_IF_ERROR(disk_.MakeDirectory(folder));
  auto files = WriteFiles(folder, part, go_on);
  if (files.ok()) return files;
  // A full disk gets its room back.
  for (size_t rank = part.first_rank; rank < end; ++rank) (void)disk_.RemoveFile(folder + "/" + RankFileName(rank));
  (void)disk_.RemoveDirectory(folder);  // unless it holds files of others
  return files;
}

absl::Status Store::Seal(const Manifest& manifest, const GoOn& go_on) {
  LS_RETURN_IF_ERROR(RefuseIfStale(manifest.point));
  const absl::Status there = ReadManifest(manifest.point).status();
  if (there.ok()) return disk_.SyncDirectory(directory_);  // written, and perhaps not synced
  const std::string folder = IncomingOf(manifest.point);
  absl::Status status = MeansDamage(there) ? CheckFiles(folder, manifest) : there;
  if (status.ok()) status = WriteText(folder + "/" + kManifestFile, RenderJson(ToJson(manifest)));
  if (status.ok() && !go_on()) status = GivenUp();
  if (status.ok()) status = Publish(folder, manifest);
  if (!status.ok()) (void)RemoveTree(folder);
  return status;
}

// What other nodes say to have written must be here too.
absl::Status Store::CheckFiles(const std::string& folder, const Manifest& manifest) const {
  for (const ManifestFile& file : manifest.files) {
    const std::string path = folder + "/" + file.name;
    const auto found = disk_.Size(path);
    if (absl::IsNotFound(found.status()))
      return FailedPrecondition(
          "{} was written and is not here: all nodes must see the same directory, and no other run may tidy up there",
          path);
    if (!found.ok()) return found.status();
    if (*found != file.bytes) return DataLoss("{} has {} bytes, expected {}", path, *found, file.bytes);
  }
  return absl::OkStatus();
}

absl::Status Store::RefuseIfStale(const Point& point) const {
  LS_ASSIGN_OR_RETURN(const std::vector<Point> points, List());
  if (points.empty() || points.front() <= point) return absl::OkStatus();
  return FailedPrecondition("{} is newer than step {} of epoch {}: a stale run writes nothing", PathOf(points.front()),
                            point.step.value(), point.epoch.value());
}

absl::StatusOr<std::vector<ManifestFile>> Store::WriteFiles(const std::string& folder, const Part& part,
                                                            const GoOn& go_on) {
  std::vector<ManifestFile> files;
  for (size_t i = 0; i < part.slots.size(); ++i) {
    const size_t rank = part.first_rank + i;
    auto file = WriteSlot(folder + "/" + RankFileName(rank), part.slots[i], go_on);
    if (!file.ok()) return At(fmt::format("rank {}", rank), file.status());
    file->name = RankFileName(rank);
    files.push_back(*std::move(file));
  }
  if (!go_on()) return GivenUp();
  LS_RETURN_IF_ERROR(disk_.SyncDirectory(folder));
  return files;
}

// The slot is verified after it was read, so that whatever changed it meanwhile is found out.
absl::StatusOr<ManifestFile> Store::WriteSlot(const std::string& path, const SlotImage& slot, const GoOn& go_on) {
  ManifestFile sums;
  sums.slot_bytes = slot.content.size();
  sums.slot_meta_bytes = slot.meta_bytes;
  sums.slot_crc32c = slot.crc32c;
  sums.slot_proof = slot.proof;
  const auto meta = slot.content.first(slot.meta_bytes);
  LS_ASSIGN_OR_RETURN(const std::vector<Tensor> table, ReadTable(meta, slot.content.size()));
  const std::vector<Tensor> order = FileOrder(table);
  LS_ASSIGN_OR_RETURN(const std::string head, RenderHead(order, meta));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> file, CreateAnew(path));
  Summed summed{*file, sums, go_on};
  LS_RETURN_IF_ERROR(summed.Append(BytesOf(head)));
  for (const Tensor& tensor : order)
    LS_RETURN_IF_ERROR(summed.Append(slot.content.subspan(tensor.slot_offset, tensor.bytes)));
  LS_RETURN_IF_ERROR(file->Sync());
  const uint32_t crc = ls_crc32c(0, slot.content.data(), slot.content.size());
  LS_RETURN_IF_ERROR(CheckCrc("its memory", crc, slot.crc32c, slot.content.size()));
  return sums;
}

// A file of that name is of a flush that failed, and whose thread may yet write to it.
absl::StatusOr<std::unique_ptr<DiskFile>> Store::CreateAnew(const std::string& path) {
  (void)disk_.RemoveFile(path);
  return disk_.Create(path);
}

absl::Status Store::WriteText(const std::string& path, const std::string& text) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> file, CreateAnew(path));
  LS_RETURN_IF_ERROR(file->Append(BytesOf(text)));
  return file->Sync();
}

// The one rename. A damaged checkpoint of the same name makes room.
absl::Status Store::Publish(const std::string& folder, const Manifest& manifest) {
  const Point& point = manifest.point;
  LS_RETURN_IF_ERROR(disk_.SyncDirectory(folder));
  LS_ASSIGN_OR_RETURN(const std::vector<Point> points, List());
  if (std::find(points.begin(), points.end(), point) != points.end()) {
    const absl::Status there = ReadManifest(point).status();
    if (there.ok()) return disk_.SyncDirectory(directory_);  // of objects, another writer may have put it meanwhile
    if (!MeansDamage(there)) return there;
    LS_RETURN_IF_ERROR(Remove(point));
  }
  // Objects have one name, incoming or not: who tidies up there may have taken them for leftovers.
  LS_RETURN_IF_ERROR(CheckFiles(folder, manifest));
  LS_RETURN_IF_ERROR(disk_.Rename(folder, PathOf(point)));
  return disk_.SyncDirectory(directory_);
}

absl::Status Store::CopyFrom(const Store& other, const Point& point, const GoOn& go_on, Here here) {
  LS_RETURN_IF_ERROR(RefuseIfStale(point));
  const absl::Status there = here == Here::kBySums ? Verify(point) : ReadManifest(point).status();
  if (there.ok()) return disk_.SyncDirectory(directory_);
  if (!MeansDamage(there)) return there;
  LS_ASSIGN_OR_RETURN(const Manifest manifest, other.ReadManifest(point));
  LS_ASSIGN_OR_RETURN(const std::vector<Point> points, List());
  // A damaged copy goes before its files are written anew: objects have one name, incoming or not.
  if (std::find(points.begin(), points.end(), point) != points.end()) LS_RETURN_IF_ERROR(Remove(point));
  const absl::Status status = CopyFiles(other, manifest, go_on);
  if (!status.ok()) (void)RemoveTree(IncomingOf(point));
  return status;
}

absl::Status Store::CopyFiles(const Store& other, const Manifest& manifest, const GoOn& go_on) {
  const std::string folder = IncomingOf(manifest.point), from = other.PathOf(manifest.point);
  LS_RETURN_IF_ERROR(disk_.MakeDirectory(folder));
  for (const ManifestFile& file : manifest.files)
    LS_RETURN_IF_ERROR(CopyFile(from + "/" + file.name, folder + "/" + file.name, file, other.disk_, go_on));
  LS_RETURN_IF_ERROR(WriteText(folder + "/" + kManifestFile, RenderJson(ToJson(manifest))));
  if (!go_on()) return GivenUp();
  return Publish(folder, manifest);
}

absl::Status Store::CopyFile(const std::string& from, const std::string& to, const ManifestFile& file, Disk& source,
                             const GoOn& go_on) {
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> copy, CreateAnew(to));
  ManifestFile sums;
  Summed summed{*copy, sums, go_on};
  std::vector<std::byte> piece;
  for (uint64_t at = 0; at < file.bytes; at += piece.size()) {
    piece.resize(std::min<uint64_t>(kPiece, file.bytes - at));
    LS_RETURN_IF_ERROR(source.Read(from, at, piece));
    LS_RETURN_IF_ERROR(summed.Append(piece));
  }
  LS_RETURN_IF_ERROR(CheckCrc(from, sums.crc32c, file.crc32c, file.bytes));
  return copy->Sync();
}

absl::Status Store::Tidy(int keep, const std::optional<Point>& spare, const IsDamaged& is_damaged) {
  absl::Status first = Prune(keep, spare, is_damaged);
  first.Update(ClearLeftovers(true));
  return first;
}

absl::Status Store::Prune(int keep, const std::optional<Point>& spare, const IsDamaged& is_damaged) {
  LS_ASSIGN_OR_RETURN(const std::vector<Point> points, List());
  absl::Status first;
  for (const Point& point : points) {
    if (is_damaged && is_damaged(point)) continue;
    if (ReadManifest(point).ok() && --keep < 0 && point != spare) first.Update(Remove(point));
  }
  return first;
}

// Out of the list by one rename, so that no crash leaves half of it there.
absl::Status Store::Remove(const Point& point) {
  const std::string folder = fmt::format("{}/{}{}", directory_, kOutgoing, DirectoryName(point));
  (void)RemoveTree(folder);
  LS_RETURN_IF_ERROR(disk_.Rename(PathOf(point), folder));
  LS_RETURN_IF_ERROR(disk_.SyncDirectory(directory_));
  return RemoveTree(folder);
}

// A link goes, and what it points to stays: a person may have moved a checkpoint to another disk.
absl::Status Store::RemoveTree(const std::string& path) {
  if (!disk_.IsDirectory(path)) return disk_.RemoveFile(path);
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_.List(path));
  absl::Status first;
  for (const std::string& name : names) first.Update(RemoveTree(path + "/" + name));
  return first.ok() ? disk_.RemoveDirectory(path) : first;
}

absl::Status Store::ClearLeftovers(bool spare_newer) {
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_.List(directory_));
  std::optional<Point> newest;
  for (const std::string& name : names) newest = std::max(newest, PointOf(name));
  absl::Status first;
  for (const std::string& name : names) {
    const bool incoming = name.starts_with(kIncoming);
    if (!incoming && !name.starts_with(kOutgoing)) continue;
    const std::optional<Point> point = PointOf(name.substr((incoming ? kIncoming : kOutgoing).size()));
    if (!point || (spare_newer && incoming && point > newest)) continue;
    first.Update(RemoveTree(directory_ + "/" + name));
  }
  return first;
}

}  // namespace lockstep::checkpoint
