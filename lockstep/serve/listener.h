// A listening TCP socket with errors that say which address and port, and what to do. The HTTP library's own would
// share a port in use silently (SO_REUSEPORT) and forget errno.
#pragma once

#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::serve {

struct Listener {
  Fd fd;
  int port = 0;
  bool loopback = false;  // reachable from this machine only
};

// Listens on the first address of `host` at which that is possible. port 0: any free one.
absl::StatusOr<Listener> Listen(const std::string& host, int port);

}  // namespace lockstep::serve
