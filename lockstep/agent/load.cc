#include "lockstep/agent/load.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>

#include "lockstep/agent/points.h"
#include "lockstep/checkpoint/budget.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/client/commit.h"
#include "lockstep/keep/fetch.h"

namespace lockstep::agent {
namespace {

using checkpoint::Manifest;
using checkpoint::ManifestFile;
using checkpoint::Point;

constexpr Seconds kMayPass{45};  // a file system of the network that failed; the job waits for this node meanwhile

// A worker asks for a little more than its state needs; with this much room it finds these buffers large enough.
uint64_t WithSlack(uint64_t bytes) { return bytes + bytes / 40 + 131072; }

// Buffers being filled, mapped for writing until this goes.
class Filling {
 public:
  ~Filling() {
    for (const std::span<std::byte> mapping : mappings_) munmap(mapping.data(), mapping.size());
  }
  absl::StatusOr<std::span<std::byte>> Add(uint64_t bytes) {
    LS_ASSIGN_OR_RETURN(RankBuffers own, MakeBuffers(WithSlack(bytes)));
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own.slot[0].get(), 0);
    if (memory == MAP_FAILED) return Errno(errno, "mapping {} bytes of a checkpoint buffer", bytes);
    mappings_.emplace_back(static_cast<std::byte*>(memory), bytes);
    buffers_.push_back(std::move(own));
    return mappings_.back();
  }
  std::vector<RankBuffers> Take() { return std::move(buffers_); }

 private:
  std::vector<std::span<std::byte>> mappings_;
  std::vector<RankBuffers> buffers_;
};

bool IsOfThisWorld(const Manifest& manifest, const RunSpec& spec) {
  return manifest.files.size() == static_cast<size_t>(spec.place.world_size);
}

// Of replicas any number of ranks can take it, and of what the script cuts anew.
absl::Status CheckWorld(const checkpoint::Store& store, const Manifest& manifest, const RunSpec& spec) {
  const auto ranks = static_cast<size_t>(spec.place.world_size);
  if (IsOfThisWorld(manifest, spec) || AreReplicas(manifest) || AreCutAnew(manifest)) return absl::OkStatus();
  return FailedPrecondition(
      "{}/{} was written by {} ranks, this job has {}: start it with {} ranks, or name another --checkpoint-dir; "
      "another number can take it only if ranks are replicas, by their tensors or by Checkpoint(replicas=True), or if "
      "the script that wrote it cuts it anew, by restore(reshape=...)",
      store.directory(), DirectoryName(manifest.point), manifest.files.size(), ranks, manifest.files.size());
}

// By rank of this node. Another world's ranks are dealt out anew.
std::vector<size_t> OwnFiles(const Manifest& manifest, const RunSpec& spec) {
  std::vector<size_t> files;
  for (int rank = spec.place.first_rank; rank < spec.place.first_rank + spec.ranks; ++rank)
    files.push_back(static_cast<size_t>(rank) % manifest.files.size());
  return files;
}

std::vector<keep::SlotHeader> OwnSlots(const Manifest& manifest, const RunSpec& spec) {
  std::vector<keep::SlotHeader> slots;
  for (const size_t index : OwnFiles(manifest, spec)) {
    const ManifestFile& file = manifest.files[index];
    slots.push_back({file.slot_bytes, file.slot_meta_bytes, file.slot_crc32c, file.slot_proof});
  }
  return slots;
}

absl::Status CheckRoom(const std::vector<keep::SlotHeader>& slots, const RunSpec& spec) {
  LS_ASSIGN_OR_RETURN(const Bytes available, checkpoint::AvailableMemory({}));
  Bytes largest;
  for (const keep::SlotHeader& slot : slots) largest = std::max(largest, Bytes{WithSlack(slot.bytes)});
  return checkpoint::CheckBudget(
      {.ranks = spec.ranks, .per_slot = largest, .held = {}, .limit = spec.checkpoint_budget}, available);
}

// Ranks will map all of its files. Each node reads its share of them first, so that all were read once.
absl::Status LeaveOnDisk(const checkpoint::Store& store, const Manifest& manifest, const RunSpec& spec,
                         Loaded& loaded) {
  LS_RETURN_IF_ERROR(store.Verify(manifest.point, static_cast<size_t>(spec.place.node),
                                  static_cast<size_t>(std::max(1, spec.place.nodes))));
  loaded.written_by = manifest.files.size();
  loaded.point = manifest.point;
  loaded.from = fmt::format("{}/{} of {} ranks, which the script cuts anew", spec.checkpoint_dir,
                            DirectoryName(manifest.point), manifest.files.size());
  return absl::OkStatus();
}

absl::Status Load(const checkpoint::Store& store, const RunSpec& spec, const Point& point, Loaded& loaded) {
  LS_ASSIGN_OR_RETURN(Manifest manifest, store.ReadManifest(point));
  if (const absl::Status fits = CheckWorld(store, manifest, spec); !fits.ok()) {
    loaded.unfit = Message(fits);
    return fits;
  }
  if (!IsOfThisWorld(manifest, spec) && !AreReplicas(manifest)) return LeaveOnDisk(store, manifest, spec, loaded);
  std::vector<keep::SlotHeader> slots = OwnSlots(manifest, spec);
  if (const absl::Status room = CheckRoom(slots, spec); !room.ok()) return FailedPrecondition("{}", Message(room));
  Filling filling;
  for (const size_t file : OwnFiles(manifest, spec))
    LS_RETURN_IF_ERROR(
        store.Load(manifest, file, 1, [&](size_t, const ManifestFile& own) { return filling.Add(own.slot_bytes); }));
  loaded.buffers = filling.Take();
  loaded.point = point;
  loaded.slots = std::move(slots);
  loaded.from = spec.checkpoint_dir + "/" + DirectoryName(point);
  return absl::OkStatus();
}

absl::Status Fetch(const RunSpec& spec, const control::FetchKept& question, const std::stop_token& stop,
                   Loaded& loaded) {
  const bool own = question.part < 0;  // else a replica that another world has written
  Filling filling;
  LS_ASSIGN_OR_RETURN(const keep::Outline outline,
                      keep::Fetch({question.host, question.port}, spec.run_token, own ? spec.place.node : question.part,
                                  ToPoint(question.point), stop,
                                  [&](size_t, const keep::SlotHeader& slot) { return filling.Add(slot.bytes); }));
  if (outline.slots.size() != static_cast<size_t>(spec.ranks) ||
      (own && outline.world_size != static_cast<uint32_t>(spec.place.world_size)))
    return FailedPrecondition("it is of {} of {} ranks, this node has {} of {}", outline.slots.size(),
                              outline.world_size, spec.ranks, spec.place.world_size);
  LS_RETURN_IF_ERROR(CheckRoom(outline.slots, spec));
  loaded.buffers = filling.Take();
  loaded.point = outline.point;
  loaded.slots = outline.slots;
  return absl::OkStatus();
}

void Empty(ls_slot& slot, uint32_t world_size) {
  ls_slot_open(&slot, 0, -1, world_size);
  __atomic_store_n(&slot.state, LS_SLOT_EMPTY, __ATOMIC_RELEASE);
}

std::string PathOf(const RunSpec& spec, const Point& point) { return spec.checkpoint_dir + "/" + DirectoryName(point); }

std::string CanNotBeLoaded(const std::string& what, const absl::Status& why, const RunSpec& spec) {
  return fmt::format("{} can't be loaded on node {}, and nothing older is taken in its place: {}", what,
                     spec.place.node, Message(why));
}

// Of what is damaged something older takes the place; of what could not be read, or has no room here, nothing.
void Reject(const std::string& what, const absl::Status& why, const RunSpec& spec, Loaded& loaded) {
  if (checkpoint::MeansDamage(why)) return loaded.rejected.push_back(Message(why));
  loaded.unfit = CanNotBeLoaded(what, why, spec);
  loaded.may_pass = checkpoint::MayPass(why);
}

Loaded LoadOnce(const RunSpec& spec, const Point& not_above) {
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  const checkpoint::Store store(*disk, spec.checkpoint_dir);
  Loaded loaded;
  const auto points = store.List();
  if (!points.ok()) Reject(spec.checkpoint_dir, points.status(), spec, loaded);
  for (const Point& point : points.ok() ? *points : std::vector<Point>{}) {
    if (point > not_above) continue;
    const absl::Status status = Load(store, spec, point, loaded);
    if (!status.ok() && loaded.unfit.empty()) Reject(PathOf(spec, point), status, spec, loaded);
    if (status.ok() || !loaded.unfit.empty()) break;
  }
  return loaded;
}

}  // namespace

Again UntilItPassed(const Clock& clock, std::function<void(const std::string& text)> note,
                    std::function<bool(Seconds)> pause) {
  return [&clock, note = std::move(note), pause = std::move(pause), until = clock.Now() + ToNanos(kMayPass),
          noted = false](const std::string& why) mutable {
    if (!std::exchange(noted, true))
      note(fmt::format("not loaded yet, and tried again for {:g} s: {}", kMayPass.value, why));
    return pause(Seconds{1}) && clock.Now() < until;
  };
}

Loaded LoadNewest(const RunSpec& spec, const Point& not_above, const Again& again) {
  Loaded loaded = LoadOnce(spec, not_above);
  while (loaded.may_pass && again && again(loaded.unfit)) loaded = LoadOnce(spec, not_above);
  return loaded;
}

Loaded LoadKept(const RunSpec& spec, const control::FetchKept& question, const std::stop_token& stop) {
  Loaded loaded;
  loaded.on_disk = false;
  loaded.from = fmt::format("the copy of step {} at {}:{}", question.point.step, question.host, question.port);
  if (const absl::Status fetched = Fetch(spec, question, stop, loaded); !fetched.ok())
    loaded.rejected.push_back(fmt::format("{}: {}", loaded.from, Message(fetched)));
  return loaded;
}

void AdoptSlots(ls_board& board, const ls_checkpoint& id, uint32_t world_size) {
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    const int kept = id.epoch != 0 ? ls_slot_find(&board.rank[rank], id) : -1;
    for (int index = 0; index < LS_SLOTS; ++index) {
      ls_slot& slot = board.rank[rank].slot[index];
      if (index == kept) {
        slot.world_size = world_size;
      } else {
        Empty(slot, world_size);
      }
    }
  }
}

void MarkLoaded(ls_board& board, const Loaded& loaded, uint32_t world_size) {
  board.restore_ranks = loaded.written_by;
  if (loaded.written_by != 0) return AdoptSlots(board, {0, -1}, world_size);
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    const keep::SlotHeader& slot = loaded.slots[rank];
    ls_slot(&slots)[LS_SLOTS] = board.rank[rank].slot;
    Empty(slots[1], world_size);
    ls_slot_open(&slots[0], loaded.point->epoch.value(), loaded.point->step.value(), world_size);
    ls_slot_done(&slots[0], slot.bytes, slot.meta_bytes, slot.crc32c, slot.proof);
  }
}

absl::StatusOr<uint64_t> FirstEpoch(const RunSpec& spec, const Again& again) {
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  const checkpoint::Store store(*disk, spec.checkpoint_dir);
  auto points = store.List();
  while (checkpoint::MayPass(points.status()) && again && again(Message(points.status()))) points = store.List();
  if (absl::IsNotFound(points.status())) return 1;  // the directory will be made
  LS_RETURN_IF_ERROR(points.status());
  return points->empty() ? 1 : points->front().epoch.value() + 1;
}

absl::Status CheckNewest(const RunSpec& spec) {
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  const checkpoint::Store store(*disk, spec.checkpoint_dir);
  const auto points = store.List();
  // Node 0 is about to make it, or it is asked for again when it is loaded.
  if (absl::IsNotFound(points.status()) || checkpoint::MayPass(points.status())) return absl::OkStatus();
  LS_RETURN_IF_ERROR(points.status());
  for (const Point& point : *points) {
    const auto manifest = store.ReadManifest(point);
    if (manifest.ok()) return CheckWorld(store, *manifest, spec);
    if (checkpoint::MayPass(manifest.status())) return absl::OkStatus();
    if (!checkpoint::MeansDamage(manifest.status()))
      return FailedPrecondition("{}", CanNotBeLoaded(PathOf(spec, point), manifest.status(), spec));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::agent
