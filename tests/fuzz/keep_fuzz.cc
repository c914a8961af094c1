// Any bytes as what another node sends: to a keeper that takes a checkpoint in (first byte even), or to an owner that
// hears a keeper's answers. It is kept, or refused with a sentence; and no more memory is taken than the limit.
#include <sys/socket.h>
#include <unistd.h>

#include <span>

#include "lockstep/base/check.h"
#include "lockstep/keep/store.h"
#include "lockstep/keep/wire.h"

namespace {

using namespace lockstep;

constexpr Bytes kLimit{1 << 22};
constexpr size_t kMost = 64 << 10;  // a socket takes so much unread

// The connection of which this is all that the other side will ever say.
keep::Connection Saying(std::span<const uint8_t> bytes) {
  int ends[2];
  LS_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const Fd other(ends[1]);
  LS_CHECK(write(other.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  return keep::Connection(Fd(ends[0]), {});
}

absl::Status TakeIn(keep::Connection& connection) {
  LS_ASSIGN_OR_RETURN(keep::Outline outline, keep::ReadOutline(connection));
  const int node = outline.node;
  const checkpoint::Point point = outline.point;
  keep::Store store(kLimit);
  LS_ASSIGN_OR_RETURN(keep::Incoming incoming, store.Begin(std::move(outline)));
  bool whole = true;
  for (const size_t chunk : incoming.missing()) {
    LS_RETURN_IF_ERROR(connection.Read(incoming.Room(chunk)));
    whole &= incoming.Accept(chunk);
  }
  if (!whole) return DataLoss("damaged");
  store.Finish(std::move(incoming));
  const auto image = store.Find(node, point);
  LS_CHECK(image != nullptr);
  for (size_t chunk = 0; chunk < image->places.size(); ++chunk) LS_CHECK(image->Content(chunk).ok());
  return absl::OkStatus();
}

absl::Status Hear(keep::Connection& connection) {
  LS_RETURN_IF_ERROR(keep::ReadAnswer(connection));
  LS_ASSIGN_OR_RETURN(const std::vector<size_t> wanted, keep::ReadWanted(connection, 1000));
  for (const size_t chunk : wanted) LS_CHECK(chunk < 1000);
  return keep::ReadAnswer(connection);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > kMost) return 0;
  keep::Connection connection = Saying({data + 1, size - 1});
  const absl::Status status = data[0] % 2 == 0 ? TakeIn(connection) : Hear(connection);
  LS_CHECK(status.ok() || !status.message().empty());
  return 0;
}
