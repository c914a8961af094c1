#include "lockstep/agent/part_writer.h"

#include <algorithm>

#include "lockstep/agent/points.h"
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

// Who reads the checkpoint in a world of another size wants to know.
void Describe(checkpoint::ManifestFile& file, const checkpoint::Point& point, const checkpoint::SlotImage& slot,
              uint64_t other_worlds, const checkpoint::GoOn& go_on) {
  file.tensors = TensorsText(point, slot, go_on);
  file.replica = other_worlds == LS_WORLDS_REPLICA;
  file.cut = other_worlds == LS_WORLDS_CUT;
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

  // What the script says of all of our ranks, it says of others, too.
  uint64_t OtherWorldsOfAll() const {
    const bool alike = std::ranges::all_of(other_worlds, [&](uint64_t what) { return what == other_worlds.front(); });
    return alike && !other_worlds.empty() ? other_worlds.front() : static_cast<uint64_t>(LS_WORLDS_UNSAID);
  }
};

using Files = std::vector<checkpoint::ManifestFile>;

absl::StatusOr<Files> WriteOwn(checkpoint::Store& store, Slots& slots, const checkpoint::GoOn& go_on) {
  const MappedBuffers mapped(static_cast<int>(slots.part.slots.size()), slots.buffers);
  LS_RETURN_IF_ERROR(slots.Map(mapped));
  LS_ASSIGN_OR_RETURN(Files files, store.WritePart(slots.part, go_on));
  for (size_t i = 0; i < files.size(); ++i)
    Describe(files[i], slots.part.point, slots.part.slots[i], slots.other_worlds[i], go_on);
  return files;
}

// Of one rank at a time there is a copy.
absl::StatusOr<Files> WriteKept(checkpoint::Store& store, const keep::Image& image, int first_rank,
                                uint64_t other_worlds, const checkpoint::GoOn& go_on) {
  Files files;
  for (size_t slot = 0; slot < image.outline.slots.size(); ++slot) {
    const keep::SlotHeader& header = image.outline.slots[slot];
    LS_ASSIGN_OR_RETURN(const std::vector<std::byte> content, image.CopyOf(slot));
    const checkpoint::SlotImage whole{content, header.meta_bytes, header.crc32c, header.proof};
    LS_ASSIGN_OR_RETURN(const Files written,
                        store.WritePart({image.outline.point, static_cast<size_t>(first_rank) + slot, {whole}}, go_on));
    files.push_back(written.front());
    Describe(files.back(), image.outline.point, whole, other_worlds, go_on);
  }
  return files;
}

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

bool PartWriter::Begin(const control::WritePart& command, ls_board& board, const RanksBuffers& buffers,
                       const KeptImages& kept) {
  if (writing_) return told_ == command;  // told twice
  told_ = command;
  answers_ = {{command.point, spec_.place.node, "", false, ""}};
  for (const control::Ward& ward : command.wards) answers_.push_back({command.point, ward.node, "", false, ""});
  if (hung_ && hung_->finished()) hung_.reset();
  if (const std::string why = WhyNot(kept); !why.empty()) return Answer(why), true;
  const ls_checkpoint id{command.point.epoch.value(), command.point.step};
  pinned_ = ls_pin(&board, id);
  for (control::PartWritten& answer : answers_) answer.gone = !pinned_;
  if (!pinned_) return true;
  auto files = std::make_shared<std::vector<Files>>();  // shared with the thread
  auto work = [files, slots = SlotsOf(spec_, board, id, buffers), wards = command.wards, kept,
               directory = spec_.checkpoint_dir,
               make_disk = make_disk_](const checkpoint::GoOn& go_on) -> absl::Status {
    const std::unique_ptr<checkpoint::Disk> disk = make_disk();
    checkpoint::Store store(*disk, directory);
    LS_ASSIGN_OR_RETURN(Files own, WriteOwn(store, *slots, go_on));
    files->push_back(std::move(own));
    for (size_t i = 0; i < wards.size(); ++i) {
      LS_ASSIGN_OR_RETURN(Files its, WriteKept(store, *kept[i], wards[i].first_rank, slots->OtherWorldsOfAll(), go_on));
      files->push_back(std::move(its));
    }
    return absl::OkStatus();
  };
  writing_ = Writing{Flight(std::move(work)), clock_.Now(), files};
  return true;
}

std::string PartWriter::WhyNot(const KeptImages& kept) {
  if (hung_) return "the flush before still hangs";
  if (spec_.checkpoint_dir.empty()) return "it was started without --checkpoint-dir";
  for (size_t i = 0; i < told_.wards.size(); ++i) {
    const bool is_kept = kept[i] && kept[i]->outline.world_size == static_cast<uint32_t>(spec_.place.world_size);
    if (!is_kept)
      return fmt::format("node {} is out of reach, and its part of step {} is not kept here", told_.wards[i].name,
                         told_.point.step);
  }
  return "";
}

void PartWriter::Answer(const std::string& error) {
  const std::string where = spec_.place.nodes > 1 ? "node " + spec_.node_name + ": " : "";
  for (control::PartWritten& answer : answers_) answer.error = error.empty() ? "" : where + error;
}

std::vector<control::PartWritten> PartWriter::Tick(ls_board& board) {
  if (writing_ && writing_->flight.finished()) {
    const absl::Status& status = writing_->flight.status();
    Answer(status.ok() ? "" : Message(status));
    for (size_t i = 0; status.ok() && i < answers_.size(); ++i)
      answers_[i].files = checkpoint::FilesText((*writing_->files)[i]);
    writing_.reset();
  } else if (writing_ && clock_.Now() - writing_->begun > ToNanos(Limit())) {
    GiveUp(fmt::format("not done after {} s", Limit().value));
  }
  if (writing_) return {};
  if (std::exchange(pinned_, false)) ls_unpin(&board);
  return std::exchange(answers_, {});
}

void PartWriter::GiveUp(const std::string& why) {
  if (!writing_) return;
  writing_->flight.GiveUp();
  hung_ = std::move(writing_->flight);
  writing_.reset();
  Answer(why);
}

}  // namespace lockstep::agent
