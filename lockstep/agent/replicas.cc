#include "lockstep/agent/replicas.h"

#include "lockstep/agent/points.h"
#include "lockstep/keep/outline.h"

namespace lockstep::agent {

std::vector<control::Replica> ReplicasOf(const ls_board& board, std::span<const checkpoint::RankSlots> slots, int node,
                                         const std::vector<checkpoint::Point>& points) {
  std::vector<control::Replica> replicas;
  bool all_say_so = true;
  for (uint32_t rank = 0; rank < board.ranks; ++rank)
    all_say_so = all_say_so && __atomic_load_n(&board.rank[rank].replica, __ATOMIC_ACQUIRE) == 1;
  for (const checkpoint::Point& point : points) {
    if (all_say_so) {
      replicas.push_back({node, ToId(point), control::kSaidToBeReplica, control::kSaidToBeReplica});
      continue;
    }
    keep::Outline outline{node, point, board.world_size, {}, {}};
    std::vector<std::span<const std::byte>> contents;
    for (uint32_t rank = 0; rank < board.ranks; ++rank) {
      const int index = ls_slot_find(&board.rank[rank], {point.epoch.value(), point.step.value()});
      if (index < 0) break;
      const ls_slot& slot = board.rank[rank].slot[index];
      outline.slots.push_back({slot.bytes, slot.meta_bytes, slot.crc32c, slot.proof});
      contents.push_back(slots[rank].slot[index].first(slot.bytes));
    }
    if (contents.size() != board.ranks) continue;
    keep::HashChunks(outline, contents, [] { return true; });
    const keep::Hash hash = keep::HashOfReplicas(outline).value_or(keep::Hash{});
    replicas.push_back({node, ToId(point), hash.low, hash.high});
  }
  return replicas;
}

}  // namespace lockstep::agent
