#include "lockstep/agent/part_writer.h"

#include <algorithm>

#include "lockstep/checkpoint/store.h"
#include "lockstep/client/commit.h"
#include "lockstep/keep/outline.h"

namespace lockstep::agent {
namespace {

// The hash of a rank's tensors, which are compared with those of other ranks.
std::string TensorsText(const checkpoint::Point& point, const checkpoint::SlotImage& slot,
                        const checkpoint::GoOn& go_on) {
  keep::Outline outline{0, point, 1, {{slot.content.size(), slot.meta_bytes, slot.crc32c}}, {}};
  const std::span<const std::byte> contents[] = {slot.content};
  keep::HashChunks(outline, contents, go_on);
  if (outline.chunks.size() != keep::PlacesOf(outline.slots).size()) return "";  // it was given up
  const keep::Hash hash = keep::HashOfReplicas(outline).value_or(keep::Hash{});
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

// What the thread reads: its own share of everything.
struct Slots {
  checkpoint::Part part;               // without content, until the buffers are mapped
  std::vector<uint64_t> index, bytes;  // by rank of this node
  std::vector<uint64_t> other_worlds;  // likewise, enum ls_other_worlds
  RanksBuffers buffers;

  absl::Status Map(const MappedBuffers& mapped) {
    for (size_t i = 0; i < part.slots.size(); ++i) {
      const std::span<const std::byte> slot = mapped.slots()[i].slot[index[i]];
      if (slot.size() < bytes[i] || bytes[i] < part.slots[i].meta_bytes)
        return DataLoss("rank {}: its buffer has {} bytes, its checkpoint {}", part.first_rank + i, slot.size(),
                        bytes[i]);
      part.slots[i].content = slot.first(bytes[i]);
    }
    return absl::OkStatus();
  }

  // Who reads the checkpoint in a world of another size wants to know.
  void Describe(std::vector<checkpoint::ManifestFile>& files, const checkpoint::GoOn& go_on) const {
    for (size_t i = 0; i < files.size(); ++i) {
      files[i].tensors = TensorsText(part.point, part.slots[i], go_on);
      files[i].replica = other_worlds[i] == LS_WORLDS_REPLICA;
      files[i].cut = other_worlds[i] == LS_WORLDS_CUT;
    }
  }
};

std::shared_ptr<Slots> SlotsOf(const RunSpec& spec, const ls_board& board, ls_checkpoint id,
                               const RanksBuffers& buffers) {
  auto slots = std::make_shared<Slots>();  // shared: std::function must be copyable
  slots->part.point = {EpochId(id.epoch), StepId(id.step)};
  slots->part.first_rank = static_cast<size_t>(spec.place.first_rank);
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    const int index = std::max(0, ls_slot_find(&board.rank[rank], id));  // pinned: it is there
    const ls_slot& slot = board.rank[rank].slot[index];
    slots->index.push_back(static_cast<uint64_t>(index));
    slots->bytes.push_back(slot.bytes);
    slots->other_worlds.push_back(__atomic_load_n(&board.rank[rank].other_worlds, __ATOMIC_ACQUIRE));
    slots->part.slots.push_back({{}, slot.meta_bytes, slot.crc32c, slot.proof});
  }
  for (const auto& [rank, own] : buffers) slots->buffers[rank] = Shared(own);
  return slots;
}

}  // namespace

bool PartWriter::Begin(const control::CheckpointId& point, ls_board& board, const RanksBuffers& buffers) {
  if (writing_) return answer_->point == point;  // told twice
  answer_ = control::PartWritten{point, spec_.place.node, "", false, ""};
  if (hung_ && hung_->finished()) hung_.reset();
  if (hung_) return Answer("the flush before still hangs"), true;
  const ls_checkpoint id{point.epoch.value(), point.step};
  if (spec_.checkpoint_dir.empty()) return Answer("it was started without --checkpoint-dir"), true;
  pinned_ = ls_pin(&board, id);
  answer_->gone = !pinned_;
  if (!pinned_) return true;
  auto files = std::make_shared<std::vector<checkpoint::ManifestFile>>();  // shared with the thread
  auto work = [files, slots = SlotsOf(spec_, board, id, buffers), directory = spec_.checkpoint_dir,
               make_disk = make_disk_](const checkpoint::GoOn& go_on) -> absl::Status {
    const MappedBuffers mapped(static_cast<int>(slots->part.slots.size()), slots->buffers);
    LS_RETURN_IF_ERROR(slots->Map(mapped));
    const std::unique_ptr<checkpoint::Disk> disk = make_disk();
    LS_ASSIGN_OR_RETURN(*files, checkpoint::Store(*disk, directory).WritePart(slots->part, go_on));
    slots->Describe(*files, go_on);
    return absl::OkStatus();
  };
  writing_ = Writing{Flight(std::move(work)), clock_.Now(), files};
  return true;
}

void PartWriter::Answer(const std::string& error) {
  const std::string where = spec_.place.nodes > 1 ? "node " + spec_.node_name + ": " : "";
  answer_->error = error.empty() ? "" : where + error;
}

std::optional<control::PartWritten> PartWriter::Tick(ls_board& board) {
  if (writing_ && writing_->flight.finished()) {
    const absl::Status& status = writing_->flight.status();
    Answer(status.ok() ? "" : Message(status));
    if (status.ok()) answer_->files = checkpoint::FilesText(*writing_->files);
    writing_.reset();
  } else if (writing_ && clock_.Now() - writing_->begun > ToNanos(spec_.checkpoint_flush_limit)) {
    GiveUp(fmt::format("not done after {} s", spec_.checkpoint_flush_limit.value));
  }
  if (writing_) return std::nullopt;
  if (std::exchange(pinned_, false)) ls_unpin(&board);
  return std::exchange(answer_, std::nullopt);
}

void PartWriter::GiveUp(const std::string& why) {
  if (!writing_) return;
  writing_->flight.GiveUp();
  hung_ = std::move(writing_->flight);
  writing_.reset();
  Answer(why);
}

}  // namespace lockstep::agent
