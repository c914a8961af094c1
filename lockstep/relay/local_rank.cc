#include "lockstep/relay/local_rank.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/memory_file.h"
#include "lockstep/base/packets.h"
#include "lockstep/client/feed_lease.h"
#include "lockstep/relay/head.h"

namespace lockstep::relay {
namespace {

constexpr int kSliceMs = 100;

absl::Status Send(int socket, const std::string& packet, std::string_view ids) {
  if (ids.empty()) return SendPacket(socket, packet);
  LS_ASSIGN_OR_RETURN(const Fd memory, MemoryFile("lockstep-feed-set", ids));
  const int fd = memory.get();
  return SendPacket(socket, packet, std::span(&fd, 1));
}

absl::StatusOr<Packet> Await(int socket, const std::function<bool()>& goes_on) {
  while (goes_on()) {
    pollfd answer{socket, POLLIN, 0};
    if (poll(&answer, 1, kSliceMs) <= 0) continue;
    std::optional<Packet> packet = ReceivePacket(socket);
    if (!packet) continue;
    if (packet->closed) return Unavailable("the data service has closed the connection");
    return *std::move(packet);
  }
  return Unavailable("nobody waits for the answer any more");
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalRank>> LocalRank::Join(const std::string& path, const std::string& packet,
                                                           std::string_view ids, const std::function<bool()>& goes_on) {
  absl::StatusOr<Fd> socket = ConnectTo(path);
  if (!socket.ok()) return Unavailable("no data service answers: {}", Message(socket.status()));
  if (const absl::Status sent = Send(socket->get(), packet, ids); !sent.ok())
    return Unavailable("the data service does not take the request: {}", Message(sent));
  LS_ASSIGN_OR_RETURN(Packet answer, Await(socket->get(), goes_on));
  const Json said = ParseJson(answer.text);
  if (const std::string gone = TextAt(said, "gone"); !gone.empty()) return Unavailable("{}", gone);
  if (const std::string error = TextAt(said, "error"); !error.empty()) return FailedPrecondition("{}", error);
  if (answer.fds.size() != 1) return DataLoss("the data service's answer came without a ring");
  ls_feed_lender* lender = ls_feed_open(answer.fds[0].get(), socket->get());
  if (lender == nullptr) return DataLoss("the data service's ring is of another version");
  return std::unique_ptr<LocalRank>(new LocalRank(*std::move(socket), std::move(answer.text), lender));
}

LocalRank::LocalRank(Fd socket, std::string answer, ls_feed_lender* lender)
    : socket_(std::move(socket)), answer_(std::move(answer)), lender_(lender) {
  const auto& ring = *reinterpret_cast<const ls_feed_ring*>(ls_feed_memory(lender));
  shape_ = {ring.slots, ring.capacity, ring.item_bytes};
}

LocalRank::~LocalRank() { ls_feed_close(lender_); }

absl::StatusOr<std::optional<LocalRank::Batch>> LocalRank::Take() {
  ls_feed_batch batch;
  const int slot = ls_feed_take(lender_, ticket_, kSliceMs, &batch);
  if (slot == LS_FEED_NOT_YET) return std::nullopt;
  if (slot == LS_FEED_TOLD) return Told();
  if (slot == LS_FEED_GONE) return Unavailable("the data service is gone");
  if (slot < 0) return DataLoss("the ring of the data service is damaged ({})", slot);
  const char* begin = ls_feed_memory(lender_) + LS_FEED_ALIGN + static_cast<uint64_t>(slot) * feed::SlotStride(shape_);
  return Batch{static_cast<uint32_t>(slot),
               ticket_++,
               {begin, HeadBytes(shape_)},
               {begin + feed::PayloadOffset(shape_), feed::PayloadBytes(shape_, batch)}};
}

void LocalRank::GiveBack(const Batch& batch) { ls_feed_drop(lender_, batch.slot, batch.ticket); }

absl::Status LocalRank::Told() const {
  const std::optional<Packet> packet = ReceivePacket(socket_.get());
  const std::string error = packet ? TextAt(ParseJson(packet->text), "error") : "";
  return FailedPrecondition("{}", error.empty() ? "the service sent what this version does not know" : error);
}

}  // namespace lockstep::relay
