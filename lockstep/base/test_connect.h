// For tests: whoever calls at a door of this machine.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstdint>

#include "lockstep/base/file.h"

namespace lockstep {

// Not valid: nobody listens.
inline Fd ConnectTo(int port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return Fd();
  return fd;
}

}  // namespace lockstep
