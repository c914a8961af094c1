// The memory that outlives workers: the board, and each rank's pair of checkpoint buffers. Owned by the starter as
// sealed memfds; the agent gets the descriptors from it and maps the board. Invariant: a rank's buffers grow where they
// are, with what is in them, and never shrink; only what was loaded from disk takes their place.
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/restore.h"
#include "lockstep/client/board.h"
#include "lockstep/client/join.h"

namespace lockstep::agent {

// A field of the board, which its rank may be changing.
inline int64_t Load(const ls_atomic_i64& value) { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }
inline uint64_t Load(const ls_atomic_u64& value) { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }

// The mapped board. Unmaps on destruction.
class BoardMap {
 public:
  // For the ranks of one node: first_rank .. first_rank + ranks - 1 of world_size.
  static absl::StatusOr<BoardMap> Create(int ranks, int first_rank, int world_size);
  static absl::StatusOr<BoardMap> Create(int ranks) { return Create(ranks, 0, ranks); }
  static absl::StatusOr<BoardMap> Map(Fd fd);
  BoardMap(BoardMap&& other) noexcept;
  BoardMap& operator=(BoardMap&&) = delete;
  ~BoardMap();
  ls_board* get() const { return board_; }
  ls_board& operator*() const { return *board_; }
  ls_board* operator->() const { return board_; }
  int fd() const { return fd_.get(); }
  int ranks() const { return static_cast<int>(board_->ranks); }

 private:
  BoardMap(Fd fd, ls_board* board, size_t bytes) : fd_(std::move(fd)), board_(board), bytes_(bytes) {}
  Fd fd_;
  ls_board* board_;
  size_t bytes_;
};

// One rank's slots, each a memfd of its own.
struct RankBuffers {
  std::array<Fd, LS_SLOTS> slot;
  uint64_t slot_bytes = 0;  // 0: none yet

  std::vector<int> descriptors() const;
};

// New ones, all zero.
absl::StatusOr<RankBuffers> MakeBuffers(uint64_t slot_bytes);
// Of a packet that brought `descriptors`; none if they are not LS_SLOTS.
std::optional<RankBuffers> TakeBuffers(std::span<Fd> descriptors, uint64_t slot_bytes);
// Other descriptors of the same memory.
RankBuffers Shared(const RankBuffers& buffers);

// All ranks' buffers mapped for reading, for as long as this lives.
class MappedBuffers {
 public:
  MappedBuffers(int ranks, const std::map<int, RankBuffers>& buffers);
  MappedBuffers(const MappedBuffers&) = delete;
  MappedBuffers& operator=(const MappedBuffers&) = delete;
  ~MappedBuffers();
  // Indexed by rank; empty where a rank has none or mapping failed.
  std::span<const checkpoint::RankSlots> slots() const { return slots_; }

 private:
  std::vector<checkpoint::RankSlots> slots_;
};

class Buffers {
 public:
  // May each slot of each rank have so much? An error says why not, with the sum.
  using BudgetCheck = std::function<absl::Status(Bytes per_slot)>;

  Buffers(BoardMap board, BudgetCheck check);
  BoardMap& board() { return board_; }
  // Answers one message of a worker (join.h); descriptors to pass along go to `fds` and stay owned here. `peer`: whose
  // it is (0: not known). The first that says HELLO is the rank of an epoch for as long as it lives: its children have
  // its environment, and with it what it joins by. is_worker: it is the process that was started as this rank, and
  // comes before any other.
  ls_join_message Answer(const ls_join_message& request, std::vector<int>& fds, pid_t peer = 0, bool is_worker = false);
  // The agent has filled these from disk; no worker runs.
  void Take(int rank, RankBuffers buffers);
  const std::vector<RankBuffers>& ranks() const { return ranks_; }
  // Record rings, by rank; not valid before the rank first joined.
  const std::vector<Fd>& rings() const { return rings_; }

 private:
  // Of the rank that asks, on the board; none: it is not of this node.
  std::optional<size_t> Index(const ls_join_message& request) const;
  ls_join_message Hello(size_t index, const ls_join_message& request, std::vector<int>& fds, pid_t peer,
                        bool is_worker);
  ls_join_message MakeRoom(size_t index, const ls_join_message& request, std::vector<int>& fds);

  struct Joined {
    uint64_t epoch = 0;
    pid_t pid = 0;
    Fd process;  // a pidfd, where there is one
  };
  static bool Lives(const Joined& joined);

  BoardMap board_;
  BudgetCheck check_;
  std::vector<Joined> joined_;
  std::vector<RankBuffers> ranks_;
  std::vector<Fd> rings_;
};

}  // namespace lockstep::agent
