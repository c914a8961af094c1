#include "lockstep/keep/fetch.h"

#include <thread>
#include <vector>

#include "lockstep/client/client.h"
#include "lockstep/keep/wire.h"

namespace lockstep::keep {
namespace {

// A connection to the keeper on which this was asked for, and granted.
absl::StatusOr<Connection> Ask(const Address& keeper, const std::string& token, const Head& head,
                               const std::stop_token& stop) {
  LS_ASSIGN_OR_RETURN(Connection connection, Connection::To(keeper, stop));
  Greeting greeting;
  greeting.purpose = Purpose::kGet;
  greeting.token = TokenField(token);
  LS_RETURN_IF_ERROR(connection.Write(greeting));
  LS_RETURN_IF_ERROR(connection.Write(head));
  LS_RETURN_IF_ERROR(ReadAnswer(connection));
  return connection;
}

absl::Status FetchSlot(Connection& connection, const std::vector<Place>& places, const Head& head,
                       const SlotHeader& header, std::span<std::byte> room) {
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

}  // namespace

absl::StatusOr<Outline> Fetch(const Address& keeper, const std::string& token, int node, const checkpoint::Point& point,
                              const std::stop_token& stop, const MakeRoom& make) {
  Head head{point.epoch.value(), point.step.value(), node, 0, kOutlineOnly, 0};
  LS_ASSIGN_OR_RETURN(Connection first, Ask(keeper, token, head, stop));
  LS_ASSIGN_OR_RETURN(Outline outline, ReadOutline(first));
  LS_RETURN_IF_ERROR(Validate(outline));
  const std::vector<Place> places = PlacesOf(outline.slots);
  std::vector<absl::Status> fetched(outline.slots.size());
  {
    std::vector<std::jthread> threads;
    for (size_t slot = 0; slot < outline.slots.size(); ++slot) {
      LS_ASSIGN_OR_RETURN(const std::span<std::byte> room, make(slot, outline.slots[slot]));
      head.slots = static_cast<uint32_t>(slot);
      threads.emplace_back([&, head, room] {
        absl::StatusOr<Connection> connection = Ask(keeper, token, head, stop);
        fetched[head.slots] = connection.ok() ? FetchSlot(*connection, places, head, outline.slots[head.slots], room)
                                              : connection.status();
      });
    }
  }
  for (const absl::Status& status : fetched) LS_RETURN_IF_ERROR(status);
  return outline;
}

}  // namespace lockstep::keep
