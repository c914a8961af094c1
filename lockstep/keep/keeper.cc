#include "lockstep/keep/keeper.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include "lockstep/base/background_thread.h"
#include "lockstep/base/clock.h"

namespace lockstep::keep {
namespace {

constexpr size_t kMostGuests = 64;
constexpr size_t kMostCallers = 64;    // who have not greeted yet
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
    std::vector<pollfd> awaited = {{socket_.get(), POLLIN, 0}};
    for (const Caller& caller : callers_) awaited.push_back({caller.socket.get(), POLLIN, 0});
    poll(awaited.data(), awaited.size(), 50);
    std::erase_if(guests_, [](const Guest& guest) { return guest.gone.load(); });
    const Nanos now = SystemClock().Now();
    for (size_t i = 0; i < callers_.size(); ++i) {
      if (awaited[i + 1].revents != 0) Hear(callers_[i]);
      if (now - callers_[i].came > ToNanos(kStall)) TurnAway(callers_[i]);
    }
    std::erase_if(callers_, [](const Caller& caller) { return !caller.socket.valid(); });
    LetIn();
  }
  guests_.clear();
}

// One at a time: who greeted while it stood in the queue is heard before others can push it out.
void Keeper::LetIn() {
  Fd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    // At the limit of open files the guest stays at the door, and poll() returns at once.
    if (errno != EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return;
  }
  ProbeWhileIdle(socket.get());
  if (callers_.size() >= kMostCallers) {
    TurnAway(callers_.front());
    callers_.pop_front();
  }
  callers_.push_back({std::move(socket), SystemClock().Now(), {}});
}

// What has come of its greeting.
void Keeper::Hear(Caller& caller) {
  const auto rest = std::as_writable_bytes(std::span(&caller.greeting, 1)).subspan(caller.got);
  const ssize_t got = recv(caller.socket.get(), rest.data(), rest.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return TurnAway(caller);
  caller.got += static_cast<size_t>(got);
  if (caller.got < sizeof caller.greeting) return;
  const bool ours = caller.greeting.magic == kMagic && caller.greeting.token == TokenField(token_);
  if (!ours || guests_.size() >= kMostGuests) return TurnAway(caller);
  Welcome(caller);
}

void Keeper::Welcome(Caller& caller) {
  Guest& guest = guests_.emplace_back();
  guest.thread = std::jthread(
      [this, &guest, fd = caller.socket.Release(), purpose = caller.greeting.purpose](const std::stop_token& asked) {
        StepBack();
        Serve(Connection(Fd(fd), asked), purpose);
        guest.gone = true;
      });
}

void Keeper::TurnAway(Caller& caller) {
  if (caller.socket.valid()) ++turned_away_;
  caller.socket.Close();
}

void Keeper::Serve(Connection connection, Purpose purpose) {
  absl::Status status;
  while (status.ok()) {
    status = connection.AwaitMore();
    if (status.ok()) status = purpose == Purpose::kPut ? Receive(connection) : Give(connection);
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
