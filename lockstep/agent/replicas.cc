#include "lockstep/agent/replicas.h"

#include <algorithm>

#include "lockstep/agent/points.h"
#include "lockstep/keep/outline.h"

namespace lockstep::agent {

std::vector<control::Replica> ReplicasOf(const ls_board& board, std::span<const checkpoint::RankSlots> slots, int node,
                                         const std::vector<checkpoint::Point>& points) {
  std::vector<control::Replica> replicas;
  const auto all_say = [&](uint64_t what) {
    return std::all_of(board.rank, board.rank + board.ranks, [&](const ls_rank_block& rank) {
      return __atomic_load_n(&rank.other_worlds, __ATOMIC_ACQUIRE) == what;
    });
  };
  const uint64_t said = all_say(LS_WORLDS_REPLICA) ? control::kSaidToBeReplica
                        : all_say(LS_WORLDS_CUT)   ? control::kSaidToBeCut
                                                   : 0;
  for (const checkpoint::Point& point : points) {
    if (said != 0) {
      replicas.push_back({node, ToId(point), said, said});
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
