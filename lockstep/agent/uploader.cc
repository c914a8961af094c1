#include "lockstep/agent/uploader.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "lockstep/agent/points.h"
#include "lockstep/remote/copies.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kRetry{30};

Flight::Work Copying(const RunSpec& spec, const checkpoint::Point& point, std::shared_ptr<std::atomic<uint64_t>> pieces,
                     std::shared_ptr<absl::Status> stays) {
  return [url = spec.checkpoint_upload, directory = spec.checkpoint_dir, keep = spec.checkpoint_keep, point,
          pieces = std::move(pieces), stays = std::move(stays)](const checkpoint::GoOn& go_on) -> absl::Status {
    const SystemClock clock;  // the thread may outlive the run's
    LS_ASSIGN_OR_RETURN(const remote::Copies copies, remote::OpenCopies(url, clock, go_on));
    LS_ASSIGN_OR_RETURN(const Fd writes, remote::Prepare(copies));
    const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
    checkpoint::Store there(*copies.disk, copies.directory);
    const auto moves = [&] { return ++*pieces, go_on(); };
    LS_RETURN_IF_ERROR(remote::CopyTo(copies, there, checkpoint::Store(*disk, directory), point, moves,
                                      checkpoint::Store::Here::kBySizes));
    *stays = there.Tidy(keep);
    return absl::OkStatus();
  };
}

// ---- before a run ----

constexpr Seconds kMoment{1};
constexpr std::chrono::milliseconds kLook{10};

struct Fetched {
  checkpoint::Point point;
  std::vector<std::string> passed_over;
};

// Of a store, whatever is done with it: its answers are the thread's until that has ended.
Flight::Work Seeing(const std::string& url, std::shared_ptr<std::vector<checkpoint::Point>> points) {
  return [url, points = std::move(points)](const checkpoint::GoOn& go_on) -> absl::Status {
    const SystemClock clock;
    LS_ASSIGN_OR_RETURN(const remote::Copies copies, remote::OpenCopies(url, clock, go_on));
    LS_ASSIGN_OR_RETURN(*points, checkpoint::Store(*copies.disk, copies.directory).List());
    return absl::OkStatus();
  };
}

Flight::Work Fetching(const std::string& url, const std::string& directory, std::shared_ptr<Fetched> fetched) {
  return [url, directory, fetched = std::move(fetched)](const checkpoint::GoOn& go_on) -> absl::Status {
    const SystemClock clock;
    LS_ASSIGN_OR_RETURN(const remote::Copies copies, remote::OpenCopies(url, clock, go_on));
    const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
    checkpoint::Store here(*disk, directory);
    const checkpoint::Store there(*copies.disk, copies.directory);
    const auto passed_over = [&](const std::string& why) { fetched->passed_over.push_back(why); };
    LS_ASSIGN_OR_RETURN(fetched->point, remote::FetchInto(here, there, go_on, passed_over));
    return absl::OkStatus();
  };
}

struct Patience {
  const Clock& clock;
  const Note& note;
  const checkpoint::GoOn& go_on;

  // What waits for a store hears nobody: it is left to its thread, after a moment in which what goes on is tidied up.
  absl::Status Await(Flight::Work work, const std::string& what) const {
    Flight flight(std::move(work));
    const Nanos begun = clock.Now();
    std::optional<Nanos> stopped;
    for (bool noted = false; !flight.finished(); std::this_thread::sleep_for(kLook)) {
      if (!go_on() && !stopped) {
        stopped = clock.Now();
        flight.GiveUp();
      }
      if (stopped && clock.Now() - *stopped > ToNanos(kMoment)) break;
      if (!stopped && clock.Now() - begun > ToNanos(kMoment) && !std::exchange(noted, true)) note(what);
    }
    if (stopped) return MakeError(absl::StatusCode::kCancelled, "stopped before the job began, " + what);
    return flight.status();
  }
};

}  // namespace

void Uploader::Tick(const std::optional<checkpoint::Point>& newest) {
  if (!works()) return;
  if (hung_ && hung_->finished()) hung_.reset();
  if (upload_) Watch();
  if (upload_) return;
  const bool wanted = newest && newest != newest_;
  if (last_ && (!wanted || last_tried_ || given_up_)) return std::exchange(last_, nullptr)();
  if (!wanted || given_up_ || (clock_.Now() < due_ && !last_)) return;
  last_tried_ = last_ != nullptr;
  Begin(*newest);
}

void Uploader::Begin(const checkpoint::Point& point) {
  if (hung_) return Fail("the upload before still hangs");
  auto pieces = std::make_shared<std::atomic<uint64_t>>(0);  // shared with the thread
  auto stays = std::make_shared<absl::Status>();
  upload_.emplace(
      Upload{point, clock_.Now(), clock_.Now(), 0, pieces, stays, Flight(Copying(spec_, point, pieces, stays))});
}

void Uploader::Watch() {
  if (upload_->flight.finished()) return Land();
  const uint64_t pieces = *upload_->pieces;
  if (pieces != std::exchange(upload_->seen, pieces)) upload_->moved = clock_.Now();
  if (clock_.Now() - upload_->moved > ToNanos(spec_.checkpoint_flush_limit))
    Drop(fmt::format("nothing of it went on for {} s", spec_.checkpoint_flush_limit.value));
}

void Uploader::Land() {
  const Upload upload = *std::exchange(upload_, std::nullopt);
  if (!upload.flight.status().ok()) return Fail(Message(upload.flight.status()));
  ++uploads_;
  took_ = clock_.Now() - upload.begun;
  newest_ = upload.point;
  uploaded_at_ = clock_.Now();
  if (!error_.empty() || last_)
    note_(fmt::format("the checkpoint of step {} is in {}", newest_->step.value(), spec_.checkpoint_upload));
  if (!upload.stays->ok() && stays_.IsNew(Message(*upload.stays)))
    note_(fmt::format("old checkpoints stay in the store: {}", Message(*upload.stays)));
  error_.clear();
  causes_.Forget();
}

void Uploader::Fail(const std::string& why) {
  ++failures_;
  error_ = why;
  due_ = clock_.Now() + ToNanos(kRetry);
  if (causes_.IsNew(why) || last_)
    note_(fmt::format("no checkpoint uploaded this time: {}{}", why, last_ ? "" : "; training goes on"));
}

void Uploader::UploadLast(std::function<void()> done) {
  if (!works()) return done();
  last_ = std::move(done);
}

void Uploader::GiveUp(const std::string& why) {
  given_up_ = true;
  if (upload_) Drop(why);
}

void Uploader::Drop(const std::string& why) {
  upload_->flight.GiveUp();
  hung_ = std::move(upload_->flight);
  upload_.reset();
  Fail(why);
}

std::optional<checkpoint::Point> Uploader::reading() const {
  return upload_ ? std::optional(upload_->point) : std::nullopt;
}

std::optional<control::Uploaded> Uploader::Observe() const {
  if (!works()) return std::nullopt;
  control::Uploaded seen;
  seen.url = spec_.checkpoint_upload;
  if (newest_) seen.newest = ToId(*newest_);
  seen.age = ToSeconds(clock_.Now() - uploaded_at_);
  seen.uploads = uploads_;
  seen.failures = failures_;
  seen.took = ToSeconds(took_);
  seen.uploading = upload_.has_value();
  seen.error = error_;
  return seen;
}

absl::Status BringBack(const RunSpec& spec, bool alone, const Clock& clock, const Note& note,
                       const checkpoint::GoOn& go_on) {
  const std::string& url = spec.checkpoint_upload;
  const std::string& directory = spec.checkpoint_dir;
  if (url.empty()) return absl::OkStatus();
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  if (const auto points = checkpoint::Store(*disk, directory).List(); points.ok() && !points->empty())
    return absl::OkStatus();
  const Patience patience{clock, note, go_on};
  const auto points = std::make_shared<std::vector<checkpoint::Point>>();
  const absl::Status seen = patience.Await(Seeing(url, points), fmt::format("asking {} for a checkpoint", url));
  if (absl::IsCancelled(seen)) return seen;
  if (absl::IsNotFound(seen) || (seen.ok() && points->empty())) return absl::OkStatus();
  if (!seen.ok())
    return FailedPrecondition(
        "{} holds nothing, and what is in {} can't be seen: {}; start again once it answers, or "
        "without --checkpoint-upload to begin at the beginning",
        directory, url, Message(seen));
  if (!alone)
    return FailedPrecondition(
        "{} holds nothing, and {} has a checkpoint: run `lockstep checkpoint fetch {} {}` once, "
        "before the nodes are started",
        directory, url, url, directory);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return InvalidArgument("--checkpoint-dir {}: {}", directory, error.message());
  const auto fetched = std::make_shared<Fetched>();
  const absl::Status status =
      patience.Await(Fetching(url, directory, fetched), fmt::format("fetching a checkpoint from {}", url));
  if (absl::IsCancelled(status)) return status;
  for (const std::string& why : fetched->passed_over) note("not fetched: " + why);
  LS_RETURN_IF_ERROR(status);
  note(fmt::format("fetched the checkpoint of step {} from {}", fetched->point.step.value(), url));
  return absl::OkStatus();
}

}  // namespace lockstep::agent
