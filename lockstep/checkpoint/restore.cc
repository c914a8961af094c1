#include "lockstep/checkpoint/restore.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/client/client.h"
#include "lockstep/client/commit.h"

namespace lockstep::checkpoint {
namespace {

// Empty if the slot verifies; else why not.
std::string Verify(const ls_board& board, const ls_slot& slot, std::span<const std::byte> content) {
  if (slot.world_size != board.world_size) {
    return fmt::format("written by {} ranks, this job has {}", slot.world_size, board.world_size);
  }
  if (slot.bytes > content.size() || slot.meta_bytes > slot.bytes) {
    return fmt::format("its header claims {} bytes, the buffer holds {}", slot.bytes, content.size());
  }
  const uint32_t crc = ls_crc32c(0, content.data(), slot.bytes);
  if (crc != slot.crc32c)
    return fmt::format("CRC {:#010x}, expected {:#010x}, over {} bytes", crc, slot.crc32c, slot.bytes);
  if (slot.proof == 0 || slot.proof == ls_proof(slot.epoch, slot.step, content.data(), slot.bytes)) return "";
  return "it is another state: the proof of freshness differs";
}

// Verifies `id` on one rank; marks its slot BAD and says why if it does not hold.
std::string VerifyRank(ls_board& board, uint32_t rank, const RankSlots& slots, ls_checkpoint id) {
  const int index = ls_slot_find(&board.rank[rank], id);
  if (index < 0) return fmt::format("rank {}: checkpoint of step {}: overwritten while it was read", rank, id.step);
  ls_slot& slot = board.rank[rank].slot[index];
  if (slots.slot[index].empty())  // nothing is known of its content: it stays for the next time
    return fmt::format("rank {}: checkpoint of step {}: its memory can't be read here", rank, id.step);
  const std::string why = Verify(board, slot, slots.slot[index]);
  if (why.empty()) return "";
  __atomic_store_n(&slot.state, LS_SLOT_BAD, __ATOMIC_RELEASE);
  return fmt::format("rank {}: checkpoint of step {}: {}", rank, id.step, why);
}

// The complaints of all ranks, in rank order whatever the threads do.
std::vector<std::string> VerifyEverywhere(ls_board& board, std::span<const RankSlots> slots, ls_checkpoint id) {
  std::vector<std::string> why(slots.size());
  {
    std::vector<std::jthread> threads;
    threads.reserve(slots.size());
    for (uint32_t rank = 0; rank < slots.size(); ++rank) {
      threads.emplace_back([&, rank] { why[rank] = VerifyRank(board, rank, slots[rank], id); });
    }
  }
  std::erase(why, "");
  return why;
}

}  // namespace

RestoreChoices FindRestores(ls_board& board, std::span<const RankSlots> slots, size_t most) {
  LS_CHECK(slots.size() == board.ranks, "{} buffers for {} ranks", slots.size(), board.ranks);
  std::vector<ls_checkpoint> candidates;
  for (const ls_slot& slot : board.rank[0].slot) {
    const ls_slot_view view = ls_slot_read(&slot);
    const bool done = !view.changing && view.state == LS_SLOT_DONE;
    if (done && view.id.epoch != 0 && ls_committed(&board, view.id)) candidates.push_back(view.id);
  }
  std::sort(candidates.begin(), candidates.end(), ls_newer);
  RestoreChoices choices;
  for (const ls_checkpoint id : candidates) {
    if (choices.points.size() == most) break;
    const std::vector<std::string> why = VerifyEverywhere(board, slots, id);
    choices.rejected.insert(choices.rejected.end(), why.begin(), why.end());  // now BAD somewhere: no longer committed
    if (why.empty()) choices.points.push_back({EpochId(id.epoch), StepId(id.step)});
  }
  return choices;
}

}  // namespace lockstep::checkpoint
