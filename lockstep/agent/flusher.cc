#include "lockstep/agent/flusher.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/agent/points.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/client/commit.h"
#include "lockstep/cluster/layout.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kRetry{30};  // after a failure, if the interval is longer
constexpr Seconds kAnswer{5};  // of the coordinator, at most

// Of the world that writes: it may have another size than the job began with. Empty: not known.
std::string LayoutOf(const RunSpec& spec) {
  const absl::StatusOr<cluster::Layout> layout = cluster::LayoutFromJson(spec.layout);
  if (spec.layout.empty() || !layout.ok() || layout->WorldSize() == spec.place.world_size) return spec.layout;
  const std::optional<cluster::Layout> now = layout->WithRanks(spec.place.world_size);
  return now ? cluster::LayoutJson(*now) : "";
}

const char* const kLock = "/.lock";

absl::StatusOr<std::shared_ptr<store::WriterLock>> TakeDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return InvalidArgument("--checkpoint-dir {}: {}", directory, error.message());
  auto lock = store::WriterLock::Take(directory + kLock);
  if (!lock.ok()) return InvalidArgument("--checkpoint-dir: {}", Message(lock.status()));
  return std::make_shared<store::WriterLock>(*std::move(lock));
}

}  // namespace

absl::Status Flusher::Open() {
  const std::string& directory = spec_.checkpoint_dir;
  if (directory.empty()) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(lock_, TakeDirectory(directory));
  due_ = clock_.Now() + ToNanos(spec_.checkpoint_interval);
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  checkpoint::Store store(*disk, directory);
  const absl::Status listed = store.List().status();
  if (!checkpoint::MayPass(listed)) LS_RETURN_IF_ERROR(listed);
  TellWhatStays(store.ClearLeftovers());
  return absl::OkStatus();
}

void Flusher::TellWhatStays(const absl::Status& why) {
  if (!why.ok() && stays_.IsNew(Message(why)))
    listener_.note(fmt::format("old checkpoints stay on disk: {}", Message(why)));
}

void Flusher::Tick(const ls_board& board) {
  const Nanos now = clock_.Now();
  if (hung_ && hung_->finished()) hung_.reset();
  if (flush_ && flush_->closing && flush_->closing->finished()) Land();
  // At the end a node may write another's part behind its own.
  const Seconds limit = spec_.checkpoint_flush_limit * (last_ ? 2 : 1);
  if (flush_ && now - flush_->begun > ToNanos(limit)) GiveUp(fmt::format("not done after {} s", limit.value));
  if (asked_.value != 0 && now - asked_ > ToNanos(kAnswer)) {
    asked_ = Nanos{};
    Fail("not all nodes are in reach");
  }
  if (waits()) return;
  if (last_) return TickLast(board);
  if (!lock_ || now < due_) return;
  due_ = now + ToNanos(spec_.checkpoint_interval);
  Ask(board);
}

void Flusher::TickLast(const ls_board& board) {
  if (lock_ && !std::exchange(last_asked_, true) && Ask(board)) return;
  std::exchange(last_, nullptr)();
}

// False: there is nothing to write.
bool Flusher::Ask(const ls_board& board) {
  const ls_checkpoint id = ls_committed_here(&board);
  const checkpoint::Point point{EpochId(id.epoch), StepId(id.step)};
  if (id.epoch == 0 || newest_ == point) return false;
  if (hung_) return Fail("the flush before still hangs"), false;
  asked_ = clock_.Now();
  listener_.say(control::FlushWanted{ToId(point)});
  return true;
}

void Flusher::Begun(const checkpoint::Point& point) {
  if (!lock_ || flush_) return;
  asked_ = Nanos{};
  flush_.emplace(point, clock_.Now());
  if (first_.value() == 0) first_ = point.epoch;
}

void Flusher::Hear(const control::PartWritten& part) {
  if (!flush_ || flush_->closing) return;
  if (flush_->point != ToPoint(part.point)) return;
  flush_->gone = flush_->gone || part.gone;
  auto files = checkpoint::FilesFromText(part.files);
  std::string failure = part.error;
  if (failure.empty() && !part.gone && !files.ok()) failure = Message(files.status());
  if (flush_->failure.empty()) flush_->failure = failure;
  flush_->parts[part.node] = files.ok() ? *std::move(files) : std::vector<checkpoint::ManifestFile>{};
  if (flush_->parts.size() == static_cast<size_t>(spec_.place.nodes)) Close();
}

void Flusher::Interrupted() {
  if (!flush_ || flush_->closing) return;
  flush_->gone = true;
  Close();
}

// All parts are written, or can't be.
void Flusher::Close() {
  checkpoint::Manifest manifest{flush_->point, spec_.job, IsoSecond(clock_.WallNow()), LayoutOf(spec_), {}};
  for (const auto& [node, files] : flush_->parts)
    manifest.files.insert(manifest.files.end(), files.begin(), files.end());
  const bool whole = !flush_->gone && flush_->failure.empty();
  const std::optional<checkpoint::Point> spare = listener_.reading ? listener_.reading() : std::nullopt;
  flush_->closing =
      Flight([make_disk = make_disk_, directory = spec_.checkpoint_dir, keep = spec_.checkpoint_keep, manifest, whole,
              spare, loaded = loaded_, first = first_, lock = lock_, retaken = flush_->retaken,
              stays = flush_->stays](const checkpoint::GoOn& go_on) -> absl::Status {
        // Somebody has removed the directory, and nobody finds it ours any more.
        if (!lock->IsAt(directory + kLock)) {
          LS_ASSIGN_OR_RETURN(*retaken, TakeDirectory(directory));
        }
        const std::unique_ptr<checkpoint::Disk> disk = make_disk();
        checkpoint::Store store(*disk, directory);
        if (!whole) {
          (void)store.Discard(manifest.point);  // what failed says more than that this failed too
          return absl::OkStatus();
        }
        LS_RETURN_IF_ERROR(store.Seal(manifest, go_on));
        // Newer than the one that the job went on from, and of an older epoch than what it has written since: no good.
        *stays = store.Tidy(keep, spare, [&](const checkpoint::Point& point) {
          return loaded && point > *loaded && point.epoch < first;
        });
        return absl::OkStatus();
      });
}

void Flusher::Land() {
  if (*flush_->retaken) {
    lock_ = *flush_->retaken;
    listener_.note(fmt::format("{} was removed under the run: it is there again, and locked", spec_.checkpoint_dir));
  }
  const absl::Status& status = flush_->closing->status();
  std::string failure = flush_->failure;
  if (failure.empty() && !status.ok()) failure = Message(status);
  if (!failure.empty()) {
    Fail(failure);
  } else if (flush_->gone) {
    due_ = clock_.Now();  // the ranks were faster
    last_asked_ = false;
  } else {
    Succeed();
    TellWhatStays(*flush_->stays);
  }
  flush_.reset();
}

void Flusher::Succeed() {
  ++flushes_;
  took_ = clock_.Now() - flush_->begun;
  Settle(flush_->point);
  if (!error_.empty() || last_)
    listener_.note(fmt::format("the checkpoint of step {} is in {}", newest_->step.value(), spec_.checkpoint_dir));
  error_.clear();
  causes_.Forget();
}

void Flusher::Fail(const std::string& why) {
  ++failures_;
  error_ = why;
  due_ = std::min(due_, clock_.Now() + ToNanos(kRetry));
  if (causes_.IsNew(why) || last_)
    listener_.note(fmt::format("no checkpoint on disk this time: {}{}", why, last_ ? "" : "; training goes on"));
}

void Flusher::GiveUp(const std::string& why) {
  if (!waits()) return;
  if (flush_ && flush_->closing) {
    flush_->closing->GiveUp();
    hung_ = std::move(flush_->closing);
  }
  flush_.reset();
  asked_ = Nanos{};
  Fail(why);
}

void Flusher::Loaded(const checkpoint::Point& point) {
  loaded_ = point;
  first_ = EpochId{};
  Settle(point);
}

void Flusher::Settle(const checkpoint::Point& point) {
  newest_ = point;
  flushed_at_ = clock_.Now();
}

std::optional<control::OnDisk> Flusher::Observe() const {
  if (spec_.checkpoint_dir.empty() || spec_.place.node != 0) return std::nullopt;
  control::OnDisk disk;
  disk.directory = spec_.checkpoint_dir;
  if (newest_) disk.flushed = ToId(*newest_);
  disk.age = ToSeconds(clock_.Now() - flushed_at_);
  disk.flushes = flushes_;
  disk.failures = failures_;
  disk.took = ToSeconds(took_);
  disk.flushing = waits();
  disk.error = error_;
  return disk;
}

}  // namespace lockstep::agent
