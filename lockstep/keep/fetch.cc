#include "lockstep/keep/fetch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/client/client.h"
#include "lockstep/keep/wire.h"

namespace lockstep::keep {
namespace {

constexpr size_t kMostConnections = 16;  // a keeper has 64 guests at most, and others come too

constexpr std::chrono::milliseconds kAgain{100};

// A conversation with a keeper, over one connection after another where they fail.
class Line {
 public:
  Line(const Address& keeper, const std::string& token, const std::stop_token& stop, Seconds patience)
      : keeper_(keeper), token_(token), stop_(stop), patience_(patience) {}

  // Asks again where it was Unavailable, for `patience` from the first time on.
  absl::Status Do(const std::function<absl::Status(Connection&)>& ask) {
    const SystemClock clock;
    std::optional<Nanos> trouble_since;
    while (true) {
      const absl::Status status = Try(ask);
      if (!absl::IsUnavailable(status)) return status;
      connection_.reset();
      if (!trouble_since) trouble_since = clock.Now();
      if (stop_.stop_requested() || clock.Now() - *trouble_since >= ToNanos(patience_)) return status;
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any().wait_for(lock, stop_, kAgain, [] { return false; });
    }
  }

 private:
  absl::Status Try(const std::function<absl::Status(Connection&)>& ask) {
    if (!connection_) {
      LS_ASSIGN_OR_RETURN(Connection connection, Connection::To(keeper_, stop_));
      Greeting greeting;
      greeting.purpose = Purpose::kGet;
      greeting.token = TokenField(token_);
      LS_RETURN_IF_ERROR(connection.Write(greeting));
      connection_.emplace(std::move(connection));
    }
    return ask(*connection_);
  }

  const Address& keeper_;
  const std::string& token_;
  const std::stop_token stop_;
  const Seconds patience_;
  std::optional<Connection> connection_;
};

absl::Status FetchSlot(Connection& connection, const std::vector<Place>& places, const Head& head,
                       const SlotHeader& header, std::span<std::byte> room) {
  LS_RETURN_IF_ERROR(connection.Write(head));
  LS_RETURN_IF_ERROR(ReadAnswer(connection));
  uint32_t crc = 0;  // chunk by chunk, while it is in the cache
  for (const Place& place : places) {
    if (place.slot != head.slots) continue;
    const std::span<std::byte> chunk = room.subspan(place.offset, place.bytes);
    LS_RETURN_IF_ERROR(ReadAnswer(connection));
    LS_RETURN_IF_ERROR(connection.Read(chunk));
    crc = ls_crc32c(crc, chunk.data(), chunk.size());
  }
  if (crc != header.crc32c)
    return DataLoss("slot {}: CRC {:#010x}, expected {:#010x}, over {} bytes", head.slots, crc, header.crc32c,
                    header.bytes);
  if (header.proof == 0 || header.proof == ls_proof(head.epoch, head.step, room.data(), header.bytes))
    return absl::OkStatus();
  return DataLoss("slot {}: it is another state than that of step {}: the proof of freshness differs", head.slots,
                  head.step);
}

// Each slot is of whichever connection comes to it first.
class Slots {
 public:
  Slots(Head head, const Outline& outline, std::vector<std::span<std::byte>> rooms)
      : head_(head), headers_(outline.slots), places_(PlacesOf(headers_)), rooms_(std::move(rooms)) {}

  // Until none is left, or one has failed.
  void TakeAll(Line& line) {
    for (size_t slot = next_++; slot < headers_.size(); slot = next_++) {
      Head head = head_;
      head.slots = static_cast<uint32_t>(slot);
      const absl::Status fetched = line.Do(
          [&](Connection& connection) { return FetchSlot(connection, places_, head, headers_[slot], rooms_[slot]); });
      if (!fetched.ok()) return Fail(fetched);
    }
  }
  // Once all have returned.
  const absl::Status& status() const { return status_; }

 private:
  void Fail(const absl::Status& status) {
    next_ = headers_.size();
    const std::lock_guard lock(mutex_);
    status_.Update(status);
  }

  const Head head_;
  const std::vector<SlotHeader>& headers_;
  const std::vector<Place> places_;
  const std::vector<std::span<std::byte>> rooms_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  absl::Status status_;  // the first failure
};

}  // namespace

absl::StatusOr<Outline> Fetch(const Address& keeper, const std::string& token, int node, const checkpoint::Point& point,
                              const std::stop_token& stop, const MakeRoom& make, Seconds patience) {
  const Head head{point.epoch.value(), point.step.value(), node, 0, kOutlineOnly, 0};
  Line first(keeper, token, stop, patience);
  Outline outline;
  const absl::Status outlined = first.Do([&](Connection& connection) -> absl::Status {
    LS_RETURN_IF_ERROR(connection.Write(head));
    LS_RETURN_IF_ERROR(ReadAnswer(connection));
    LS_ASSIGN_OR_RETURN(outline, ReadOutline(connection));
    return Validate(outline);
  });
  LS_RETURN_IF_ERROR(outlined);
  std::vector<std::span<std::byte>> rooms;
  for (size_t slot = 0; slot < outline.slots.size(); ++slot) {
    LS_ASSIGN_OR_RETURN(rooms.emplace_back(), make(slot, outline.slots[slot]));
  }
  Slots slots(head, outline, std::move(rooms));
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(outline.slots.size(), kMostConnections); ++i)
      others.emplace_back([&] {
        Line line(keeper, token, stop, patience);
        slots.TakeAll(line);
      });
    slots.TakeAll(first);
  }
  LS_RETURN_IF_ERROR(slots.status());
  return outline;
}

}  // namespace lockstep::keep
