#include "lockstep/keep/keeper.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "lockstep/base/background_thread.h"
#include "lockstep/keep/wire.h"

namespace lockstep::keep {
namespace {

constexpr size_t kMostGuests = 64;
constexpr Seconds kOwnIsComing{0.25};  // data-parallel replicas finish a step together, more or less

// A machine that went dark does not keep its thread here for ever.
void ProbeWhileIdle(int socket) {
  const int on = 1, idle_s = 10, times = 3;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

absl::Status Keeper::Open(bool loopback_only) {
  LS_ASSIGN_OR_RETURN(socket_, ListenOnFreePort(loopback_only, port_));
  listener_ = std::jthread([this](const std::stop_token& stop) { Listen(stop); });
  return absl::OkStatus();
}

void Keeper::Listen(const std::stop_token& stop) {
  StepBack();
  while (!stop.stop_requested()) {
    pollfd one{socket_.get(), POLLIN, 0};
    poll(&one, 1, 50);
    std::erase_if(guests_, [](const Guest& guest) { return guest.gone.load(); });
    Fd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // At the limit of open files the guest stays at the door, and poll() returns at once.
      if (errno != EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    if (guests_.size() >= kMostGuests) {
      ++turned_away_;
      continue;
    }
    ProbeWhileIdle(socket.get());
    Guest& guest = guests_.emplace_back();
    guest.thread = std::jthread([this, &guest, fd = socket.Release()](const std::stop_token& asked) {
      StepBack();
      Serve(Connection(Fd(fd), asked));
      guest.gone = true;
    });
  }
  guests_.clear();
}

void Keeper::Serve(Connection connection) {
  Greeting greeting;
  if (!connection.Read(greeting).ok() || greeting.magic != kMagic || greeting.token != TokenField(token_)) {
    ++turned_away_;
    return;
  }
  absl::Status status;
  while (status.ok()) {
    status = connection.AwaitMore();
    if (status.ok()) status = greeting.purpose == Purpose::kPut ? Receive(connection) : Give(connection);
  }
}

// A refusal leaves the connection as it is: the next checkpoint may fit again.
absl::Status Keeper::Receive(Connection& connection) {
  LS_ASSIGN_OR_RETURN(Outline outline, ReadOutline(connection));
  const size_t chunks = outline.chunks.size();
  store_.AwaitOwn(outline.point, kOwnIsComing);
  absl::StatusOr<Incoming> incoming = store_.Begin(std::move(outline));
  LS_RETURN_IF_ERROR(WriteAnswer(connection, incoming.status()));
  if (!incoming.ok()) return absl::OkStatus();
  LS_RETURN_IF_ERROR(WriteWanted(connection, chunks, incoming->missing()));
  size_t damaged = 0;
  for (const size_t chunk : incoming->missing()) {
    LS_RETURN_IF_ERROR(connection.Read(incoming->Room(chunk)));
    damaged += incoming->Accept(chunk) ? 0 : 1;
  }
  absl::Status kept;
  if (damaged > 0)
    kept =
        MakeError(absl::StatusCode::kAborted, fmt::format("{} chunks were written over while they were sent", damaged));
  if (kept.ok()) store_.Finish(*std::move(incoming));
  return WriteAnswer(connection, kept);
}

absl::Status Keeper::Give(Connection& connection) {
  Head head;
  LS_RETURN_IF_ERROR(connection.Read(head));
  const auto image = store_.Find(head.node, {EpochId(head.epoch), StepId(head.step)});
  const bool whole_outline = head.slots == kOutlineOnly;
  if (!image || (!whole_outline && head.slots >= image->outline.slots.size()))
    return WriteAnswer(connection, NotFound("node {}'s checkpoint of step {} is not kept here", head.node, head.step));
  LS_RETURN_IF_ERROR(WriteAnswer(connection, absl::OkStatus()));
  return whole_outline ? WriteOutline(connection, image->outline) : GiveSlot(connection, *image, head.slots);
}

// Chunk by chunk, for what our own ranks share may have gone by now: then a no comes in its place.
absl::Status Keeper::GiveSlot(Connection& connection, const Image& image, size_t slot) {
  for (size_t chunk = 0; chunk < image.places.size(); ++chunk) {
    if (image.places[chunk].slot != slot) continue;
    const absl::StatusOr<std::span<const std::byte>> content = image.Content(chunk);
    LS_RETURN_IF_ERROR(WriteAnswer(connection, content.status()));
    LS_RETURN_IF_ERROR(content.status());
    LS_RETURN_IF_ERROR(connection.Write(*content));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::keep
