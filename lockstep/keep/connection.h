// A TCP connection with limits: nothing waits for longer than kStall without a byte moving, and everything ends soon
// after a stop. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::keep {

inline constexpr Seconds kStall{5};

// Where a keeper listens.
struct Address {
  std::string host;
  int port = 0;
  bool operator==(const Address&) const = default;
};

class Connection {
 public:
  Connection(Fd socket, std::stop_token stop) : socket_(std::move(socket)), stop_(std::move(stop)) {}
  // Waits for a name server, and then for each address, for kStall at most. NotFound: at each of them nobody listens.
  static absl::StatusOr<Connection> To(const Address& address, std::stop_token stop);

  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Read(std::span<std::byte> bytes);
  // Waits without a limit until there is something to read, or the other side is gone.
  absl::Status AwaitMore();

  template <typename Plain>
  absl::Status Write(const Plain& plain) {
    return Write(std::as_bytes(std::span(&plain, 1)));
  }
  template <typename Plain>
  absl::Status Read(Plain& plain) {
    return Read(std::as_writable_bytes(std::span(&plain, 1)));
  }

 private:
  static absl::StatusOr<Connection> ToOne(const std::string& number, int port, std::stop_token stop);
  absl::Status Await(short events, Seconds at_most);

  Fd socket_;
  std::stop_token stop_;
};

// Listens on a free port of all addresses, or of loopback only.
absl::StatusOr<Fd> ListenOnFreePort(bool loopback_only, int& port);

}  // namespace lockstep::keep
