#include "lockstep/keep/sender.h"

#include <chrono>
#include <utility>

#include "lockstep/base/background_thread.h"
#include "lockstep/keep/gaps.h"
#include "lockstep/keep/wire.h"

namespace lockstep::keep {
namespace {

constexpr std::chrono::milliseconds kAgain{500};

// And the connection is as it was.
bool IsAnswer(const absl::Status& status) { return absl::IsFailedPrecondition(status) || absl::IsAborted(status); }

}  // namespace

Sender::Sender(std::string token, Store& own, Listener listener)
    : token_(std::move(token)), own_(own), listener_(std::move(listener)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

Sender::~Sender() {
  thread_.request_stop();
  changed_.notify_all();
}

void Sender::SendTo(const std::optional<Address>& keeper) {
  const std::lock_guard lock(mutex_);
  keeper_ = keeper;
  changed_.notify_all();
}

void Sender::Offer(OwnPart part) {
  const std::lock_guard lock(mutex_);
  offered_ = std::move(part);
  changed_.notify_all();
}

void Sender::Loop(const std::stop_token& stop) {
  StepBack();
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [&] { return offered_ || (part_ && keeper_); });
    }
    if (stop.stop_requested()) return;
    if (!Describe(stop)) continue;
    {
      const std::lock_guard lock(mutex_);
      if (!keeper_) continue;
      job = {part_, *keeper_};
    }
    const absl::Status sent = Send(job, stop);
    if (stop.stop_requested()) return;
    if (sent.ok()) {
      part_.reset();
      listener_.kept(job.part->outline.point);
      continue;
    }
    listener_.trouble(sent);
    // It would say no again, or what was to be kept is not there any more; another checkpoint may fit.
    if (IsAnswer(sent)) part_.reset();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, kAgain, [&] { return offered_.has_value() || keeper_ != job.keeper; });
  }
}

// What was offered last, if anything was since. False: there is nothing to send.
bool Sender::Describe(const std::stop_token& stop) {
  std::optional<OwnPart> offered;
  {
    const std::lock_guard lock(mutex_);
    offered = std::exchange(offered_, std::nullopt);
  }
  if (!offered) return part_ != nullptr;
  HashChunks(offered->outline, offered->contents, [&] { return !stop.stop_requested(); });
  if (stop.stop_requested()) return false;
  part_ = std::make_shared<const OwnPart>(*std::move(offered));
  own_.SetOwn(part_);
  return true;
}

absl::Status Sender::Send(const Job& job, const std::stop_token& stop) {
  if (connected_to_ != job.keeper) connection_.reset();
  if (!connection_) {
    LS_ASSIGN_OR_RETURN(Connection connection, Connection::To(job.keeper, stop));
    Greeting greeting;
    greeting.token = TokenField(token_);
    LS_RETURN_IF_ERROR(connection.Write(greeting));
    connection_.emplace(std::move(connection));
    connected_to_ = job.keeper;
  }
  const absl::Status sent = Converse(*connection_, *job.part, stop);
  if (!sent.ok() && !IsAnswer(sent)) connection_.reset();
  return sent;
}

absl::Status Sender::Converse(Connection& connection, const OwnPart& part, const std::stop_token& stop) {
  const std::vector<Place> places = PlacesOf(part.outline.slots);
  LS_RETURN_IF_ERROR(WriteOutline(connection, part.outline));
  LS_RETURN_IF_ERROR(ReadAnswer(connection));
  LS_ASSIGN_OR_RETURN(const std::vector<size_t> wanted, ReadWanted(connection, places.size()));
  const SystemClock clock;
  Gaps gaps(clock, listener_.busy);
  for (const size_t chunk : wanted) {
    const Place& place = places[chunk];
    if (gaps.Await(stop)) bytes_in_gaps_ += place.bytes;
    LS_RETURN_IF_ERROR(connection.Write(part.contents[place.slot].subspan(place.offset, place.bytes)));
    bytes_sent_ += place.bytes;
  }
  LS_RETURN_IF_ERROR(ReadAnswer(connection));
  bytes_kept_ += BytesOf(part.outline);
  return absl::OkStatus();
}

}  // namespace lockstep::keep
