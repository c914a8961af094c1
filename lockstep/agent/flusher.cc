#include "lockstep/agent/flusher.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <thread>

#include "lockstep/agent/thread_signals.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kRetry{30.0};  // after a failure, if the interval is longer
constexpr int kNice = 10;        // training comes first

// What went wrong without where: the same cause is told once, whatever step it struck.
std::string CauseOf(const std::string& why) {
  const size_t colon = why.rfind(": ");
  return colon == std::string::npos ? why : why.substr(colon);
}

std::string Utc(Nanos wall) {
  const time_t seconds = wall.value / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

}  // namespace

// One flush: what its thread reads, and what it answers. The thread owns a share of all it touches.
struct Flight {
  Flusher::MakeDisk make_disk;
  std::string directory;
  int keep = 2;
  checkpoint::Image image;                       // content is filled in by the thread, once it has mapped the buffers
  std::vector<uint64_t> slot_index, slot_bytes;  // by rank
  Flusher::RanksBuffers buffers;
  Nanos begun;
  std::atomic<bool> given_up = false;
  absl::Status written, pruned;  // valid once finished is true
  std::atomic<bool> finished = false;

  absl::Status Map(const MappedBuffers& mapped);
  void Fly();
};

absl::Status Flight::Map(const MappedBuffers& mapped) {
  for (size_t rank = 0; rank < image.slots.size(); ++rank) {
    const std::span<const std::byte> slot = mapped.slots()[rank].slot[slot_index[rank]];
    if (slot.size() < slot_bytes[rank] || slot_bytes[rank] < image.slots[rank].meta_bytes)
      return DataLoss("rank {}: its buffer has {} bytes, its checkpoint {}", rank, slot.size(), slot_bytes[rank]);
    image.slots[rank].content = slot.first(slot_bytes[rank]);
  }
  return absl::OkStatus();
}

void Flight::Fly() {
  const MappedBuffers mapped(static_cast<int>(image.slots.size()), buffers);
  const std::unique_ptr<checkpoint::Disk> disk = make_disk();
  checkpoint::Store store(*disk, directory);
  written = Map(mapped);
  if (written.ok()) written = store.Write(image, [this] { return !given_up.load(); });
  if (written.ok()) pruned = store.Prune(keep);
}

namespace {

void Depart(std::shared_ptr<Flight> flight) {
  std::thread([flight = std::move(flight)] {
    TakeNoSignals();
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
    flight->Fly();
    flight->finished.store(true, std::memory_order_release);
  }).detach();
}

std::shared_ptr<Flight> Prepare(const RunSpec& spec, const Clock& clock, const ls_board& board, ls_checkpoint id,
                                const Flusher::RanksBuffers& buffers) {
  auto flight = std::make_shared<Flight>();  // shared: its thread may outlive the flusher
  flight->directory = spec.checkpoint_dir;
  flight->keep = spec.checkpoint_keep;
  flight->begun = clock.Now();
  flight->image.point = {EpochId(id.epoch), StepId(id.step)};
  flight->image.job = spec.job;
  flight->image.written = Utc(clock.WallNow());
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    const int index = std::max(0, ls_slot_find(&board.rank[rank], id));  // pinned: it is there
    const ls_slot& slot = board.rank[rank].slot[index];
    flight->slot_index.push_back(static_cast<uint64_t>(index));
    flight->slot_bytes.push_back(slot.bytes);
    flight->image.slots.push_back({{}, slot.meta_bytes, slot.crc32c});
  }
  for (const auto& [rank, own] : buffers) flight->buffers[rank] = Shared(own);
  return flight;
}

}  // namespace

Flusher::~Flusher() {
  if (flight_) flight_->given_up = true;
}

absl::Status Flusher::Open() {
  const std::string& directory = spec_.checkpoint_dir;
  if (directory.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return InvalidArgument("--checkpoint-dir {}: {}", directory, error.message());
  auto lock = store::WriterLock::Take(directory + "/.lock");
  if (!lock.ok()) return InvalidArgument("--checkpoint-dir: {}", Message(lock.status()));
  lock_ = *std::move(lock);
  due_ = clock_.Now() + ToNanos(spec_.checkpoint_interval);
  return checkpoint::Store(*checkpoint::PosixDisk(), directory).ClearLeftovers();
}

void Flusher::Tick(ls_board& board, const RanksBuffers& buffers) {
  const Nanos now = clock_.Now();
  if (flight_ && flight_->finished.load(std::memory_order_acquire)) Land(board);
  if (flight_ && now - flight_->begun > ToNanos(spec_.checkpoint_flush_limit))
    GiveUp(board, fmt::format("not done after {} s", spec_.checkpoint_flush_limit.value));
  if (hung_ && hung_->finished.load(std::memory_order_acquire)) hung_.reset();
  if (last_) return TickLast(board, buffers);
  if (!lock_ || flight_ || now < due_) return;
  if (Begin(board, buffers)) due_ = now + ToNanos(spec_.checkpoint_interval);
}

void Flusher::TickLast(ls_board& board, const RanksBuffers& buffers) {
  if (flight_) return;
  if (lock_ && !last_begun_) {
    last_begun_ = Begin(board, buffers);
    if (flight_ || !last_begun_) return;
  }
  std::exchange(last_, nullptr)();
}

// False: ask again at the next tick.
bool Flusher::Begin(ls_board& board, const RanksBuffers& buffers) {
  const ls_checkpoint id = ls_newest_committed(&board, 0);
  const checkpoint::Point point{EpochId(id.epoch), StepId(id.step)};
  if (id.epoch == 0 || newest_ == point) return true;
  if (hung_) return Fail("the flush before still hangs"), true;
  if (!ls_pin(&board, id)) return false;
  flight_ = Prepare(spec_, clock_, board, id, buffers);
  flight_->make_disk = make_disk_;
  Depart(flight_);
  return true;
}

void Flusher::Land(ls_board& board) {
  ls_unpin(&board);
  const std::shared_ptr<Flight> flight = std::exchange(flight_, nullptr);
  if (!flight->written.ok()) return Fail(Message(flight->written));
  Succeed(*flight);
  if (!flight->pruned.ok()) note_(fmt::format("old checkpoints stay on disk: {}", Message(flight->pruned)));
}

void Flusher::Succeed(const Flight& flight) {
  ++flushes_;
  took_ = clock_.Now() - flight.begun;
  Loaded(flight.image.point);
  if (!error_.empty() || last_)
    note_(fmt::format("the checkpoint of step {} is in {}", flight.image.point.step.value(), spec_.checkpoint_dir));
  error_.clear();
  cause_told_.clear();
}

void Flusher::Fail(const std::string& why) {
  ++failures_;
  error_ = why;
  due_ = std::min(due_, clock_.Now() + ToNanos(kRetry));
  if (std::exchange(cause_told_, CauseOf(why)) != CauseOf(why) || last_)
    note_(fmt::format("no checkpoint on disk this time: {}{}", why, last_ ? "" : "; training goes on"));
}

void Flusher::GiveUp(ls_board& board, const std::string& why) {
  if (!flight_) return;
  flight_->given_up = true;
  hung_ = std::exchange(flight_, nullptr);
  ls_unpin(&board);
  Fail(why);
}

void Flusher::Loaded(const checkpoint::Point& point) {
  newest_ = point;
  flushed_at_ = clock_.Now();
}

std::optional<control::OnDisk> Flusher::Observe() const {
  if (spec_.checkpoint_dir.empty()) return std::nullopt;
  control::OnDisk disk;
  disk.directory = spec_.checkpoint_dir;
  if (newest_) disk.flushed = control::CheckpointId{newest_->epoch, newest_->step.value()};
  disk.age = ToSeconds(clock_.Now() - flushed_at_);
  disk.flushes = flushes_;
  disk.failures = failures_;
  disk.took = ToSeconds(took_);
  disk.flushing = flight_ != nullptr;
  disk.error = error_;
  return disk;
}

}  // namespace lockstep::agent
