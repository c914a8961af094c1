#include "lockstep/agent/buffers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/record/ring.h"

namespace lockstep::agent {
namespace {

constexpr uint32_t kRingRecords = 1024;  // seconds to minutes of steps, were the agent away

// Nobody can shrink it under a mapping: no SIGBUS in a worker.
constexpr int kMayGrow = F_SEAL_SHRINK | F_SEAL_SEAL;
constexpr int kOfOneSize = kMayGrow | F_SEAL_GROW;

std::string SlotName(size_t index) { return fmt::format("lockstep-slot{}", index); }

absl::Status Resize(const Fd& fd, const std::string& name, uint64_t bytes) {
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
  const bool is_limit = errno == EFBIG;
  const absl::Status failed = Errno(errno, "{} bytes of shared memory for {}", bytes, name);
  return is_limit ? MakeError(failed.code(), Message(failed) + "; raise `ulimit -f`") : failed;
}

absl::StatusOr<Fd> MakeMemory(const std::string& name, uint64_t bytes, int seals) {
  Fd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Errno(errno, "memfd_create {}", name);
  LS_RETURN_IF_ERROR(Resize(fd, name, bytes));
  fcntl(fd.get(), F_ADD_SEALS, seals);
  return fd;
}

// Those that are not there yet are made. What a reader has mapped stays as it is.
absl::Status Grow(RankBuffers& own, uint64_t slot_bytes) {
  if (own.slot_bytes == 0) {
    LS_ASSIGN_OR_RETURN(own, MakeBuffers(slot_bytes));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < LS_SLOTS; ++i) LS_RETURN_IF_ERROR(Resize(own.slot[i], SlotName(i), slot_bytes));
  own.slot_bytes = slot_bytes;
  return absl::OkStatus();
}

absl::StatusOr<Fd> MakeRing() {
  const size_t bytes = ls_ring_bytes(kRingRecords);
  LS_ASSIGN_OR_RETURN(Fd fd, MakeMemory("lockstep-ring", bytes, kOfOneSize));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Errno(errno, "mapping a record ring");
  LS_CHECK(ls_ring_format(memory, bytes), "{} bytes", bytes);
  munmap(memory, bytes);
  return fd;
}

ls_join_message Reply(const ls_join_message& request, uint32_t kind) {
  ls_join_message reply{};
  reply.kind = kind;
  reply.version = LS_JOIN_VERSION;
  reply.rank = request.rank;
  reply.epoch = request.epoch;
  return reply;
}

ls_join_message Refuse(const ls_join_message& request, const std::string& why) {
  ls_join_message reply = Reply(request, LS_JOIN_REFUSED);
  std::strncpy(reply.text, why.c_str(), sizeof(reply.text) - 1);
  return reply;
}

}  // namespace

absl::StatusOr<RankBuffers> MakeBuffers(uint64_t slot_bytes) {
  RankBuffers made;
  for (size_t i = 0; i < LS_SLOTS; ++i) {
    LS_ASSIGN_OR_RETURN(made.slot[i], MakeMemory(SlotName(i), slot_bytes, kMayGrow));
  }
  made.slot_bytes = slot_bytes;
  return made;
}

std::vector<int> RankBuffers::descriptors() const {
  std::vector<int> all;
  for (const Fd& own : slot) all.push_back(own.get());
  return all;
}

std::optional<RankBuffers> TakeBuffers(std::span<Fd> descriptors, uint64_t slot_bytes) {
  if (descriptors.size() != LS_SLOTS) return std::nullopt;
  RankBuffers taken;
  std::move(descriptors.begin(), descriptors.end(), taken.slot.begin());
  taken.slot_bytes = slot_bytes;
  return taken;
}

RankBuffers Shared(const RankBuffers& buffers) {
  RankBuffers shared;
  for (size_t i = 0; i < LS_SLOTS; ++i) shared.slot[i] = Fd(fcntl(buffers.slot[i].get(), F_DUPFD_CLOEXEC, 0));
  shared.slot_bytes = buffers.slot_bytes;
  return shared;
}

absl::StatusOr<BoardMap> BoardMap::Map(Fd fd) {
  const off_t bytes = lseek(fd.get(), 0, SEEK_END);
  if (bytes < static_cast<off_t>(sizeof(ls_board))) return DataLoss("the board has {} bytes", bytes);
  void* memory =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) return Errno(errno, "mapping the board");
  return BoardMap(std::move(fd), static_cast<ls_board*>(memory), static_cast<size_t>(bytes));
}

absl::StatusOr<BoardMap> BoardMap::Create(int ranks, int first_rank, int world_size) {
  LS_ASSIGN_OR_RETURN(Fd fd, MakeMemory("lockstep-board", ls_board_bytes(static_cast<uint32_t>(ranks)), kOfOneSize));
  LS_ASSIGN_OR_RETURN(BoardMap board, Map(std::move(fd)));
  board->version = LS_BOARD_VERSION;
  board->ranks = static_cast<uint32_t>(ranks);
  board->first_rank = static_cast<uint32_t>(first_rank);
  board->world_size = static_cast<uint32_t>(world_size);
  board->committed_step = board->dead_step = -1;
  for (int rank = 0; rank < ranks; ++rank) {
    board->rank[rank].step = -1;
    board->rank[rank].attempted_step = -1;
  }
  board->magic = LS_BOARD_MAGIC;
  return board;
}

BoardMap::BoardMap(BoardMap&& other) noexcept
    : fd_(std::move(other.fd_)), board_(std::exchange(other.board_, nullptr)), bytes_(other.bytes_) {}

BoardMap::~BoardMap() {
  if (board_ != nullptr) munmap(board_, bytes_);
}

MappedBuffers::MappedBuffers(int ranks, const std::map<int, RankBuffers>& buffers)
    : slots_(static_cast<size_t>(ranks)) {
  for (const auto& [rank, own] : buffers) {
    for (size_t i = 0; i < LS_SLOTS; ++i) {
      // Not populated: whoever reads a slot, on a thread of its own, pays for its pages, and nobody for those of the
      // other.
      void* memory = mmap(nullptr, own.slot_bytes, PROT_READ, MAP_SHARED, own.slot[i].get(), 0);
      if (memory == MAP_FAILED) continue;
      slots_[static_cast<size_t>(rank)].slot[i] = {static_cast<const std::byte*>(memory), own.slot_bytes};
    }
  }
}

MappedBuffers::~MappedBuffers() {
  for (const checkpoint::RankSlots& own : slots_) {
    for (const std::span<const std::byte> slot : own.slot)
      if (!slot.empty()) munmap(const_cast<std::byte*>(slot.data()), slot.size());
  }
}

Buffers::Buffers(BoardMap board, BudgetCheck check)
    : board_(std::move(board)),
      check_(std::move(check)),
      joined_(static_cast<size_t>(board_.ranks())),
      ranks_(static_cast<size_t>(board_.ranks())),
      rings_(static_cast<size_t>(board_.ranks())) {}

std::optional<size_t> Buffers::Index(const ls_join_message& request) const {
  const int64_t index = int64_t{request.rank} - board_->first_rank;
  if (index < 0 || index >= board_.ranks()) return std::nullopt;
  return static_cast<size_t>(index);
}

ls_join_message Buffers::Answer(const ls_join_message& request, std::vector<int>& fds, pid_t peer, bool is_worker) {
  if (request.version != LS_JOIN_VERSION) {
    return Refuse(request,
                  fmt::format("the client speaks join version {}, this Lockstep {}; install both from one release",
                              request.version, LS_JOIN_VERSION));
  }
  const std::optional<size_t> index = Index(request);
  if (!index) {
    const uint32_t first = board_->first_rank;
    return Refuse(request,
                  fmt::format("rank {} is outside this node's {}..{}", request.rank, first, first + board_->ranks - 1));
  }
  const uint64_t acting = __atomic_load_n(&board_->epoch, __ATOMIC_ACQUIRE);
  if (request.epoch != acting) {
    return Refuse(request, fmt::format("epoch {} is over, epoch {} acts now", request.epoch, acting));
  }
  return request.kind == LS_JOIN_HELLO ? Hello(*index, request, fds, peer, is_worker) : MakeRoom(*index, request, fds);
}

// A zombie does not.
bool Buffers::Lives(const Joined& joined) {
  pollfd process{joined.process.get(), POLLIN, 0};
  return joined.process.valid() && poll(&process, 1, 0) == 0;
}

ls_join_message Buffers::Hello(size_t index, const ls_join_message& request, std::vector<int>& fds, pid_t peer,
                               bool is_worker) {
  Joined& joined = joined_[index];
  const bool anew = joined.epoch != request.epoch || joined.pid != peer;
  if (anew && peer > 0 && !is_worker && joined.epoch == request.epoch && Lives(joined))
    return Refuse(request, fmt::format("rank {} of this epoch is process {} already", request.rank, joined.pid));
  if (anew && peer > 0) joined = {request.epoch, peer, Fd(static_cast<int>(syscall(SYS_pidfd_open, peer, 0)))};
  Fd& ring = rings_[index];
  if (!ring.valid()) {
    auto made = MakeRing();
    if (!made.ok()) return Refuse(request, Message(made.status()));
    ring = *std::move(made);
  }
  ls_join_message reply = Reply(request, LS_JOIN_OK);
  reply.world_size = board_->world_size;
  fds = {board_.fd(), ring.get()};
  return reply;
}

ls_join_message Buffers::MakeRoom(size_t index, const ls_join_message& request, std::vector<int>& fds) {
  RankBuffers& own = ranks_[index];
  if (own.slot_bytes == 0 || own.slot_bytes < request.bytes) {
    absl::Status status = check_(Bytes{request.bytes});
    if (status.ok()) status = Grow(own, request.bytes);
    if (!status.ok()) return Refuse(request, Message(status));
  }
  ls_join_message reply = Reply(request, LS_JOIN_OK);
  reply.world_size = board_->world_size;
  reply.bytes = own.slot_bytes;
  fds = own.descriptors();
  return reply;
}

void Buffers::Take(int rank, RankBuffers buffers) {
  if (rank >= 0 && rank < board_.ranks()) ranks_[static_cast<size_t>(rank)] = std::move(buffers);
}

}  // namespace lockstep::agent
