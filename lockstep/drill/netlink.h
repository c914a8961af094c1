// rtnetlink: what the kernel knows of links, addresses, neighbours and routes, as the messages that it sends. A message
// is a header and a body of whole structures; one that was dumped can be sent back to have the same object made again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::drill {

class Netlink {
 public:
  // Of the network namespace that the calling thread is in now.
  static absl::StatusOr<Netlink> Open();

  // All objects of a kind. type: RTM_GETLINK, RTM_GETADDR, ...; `filter`: that kind's structure, zero but for its
  // family.
  template <typename Body>
  absl::StatusOr<std::vector<std::string>> Dump(uint16_t type, const Body& filter) {
    return DumpAll(type, std::string(reinterpret_cast<const char*>(&filter), sizeof(filter)));
  }
  // Has the kernel make or change an object. type: RTM_NEWLINK, ...; flags: NLM_F_CREATE, ...; `body`: all behind the
  // header. AlreadyExists: it is there.
  absl::Status Change(uint16_t type, uint16_t flags, const std::string& body);

  // The structure at the head of a dumped message, and all behind the header.
  template <typename Body>
  static Body Head(const std::string& message) {
    Body body{};
    const std::string all = BodyOf(message);
    std::memcpy(&body, all.data(), std::min(sizeof(body), all.size()));
    return body;
  }
  static std::string BodyOf(const std::string& message);

 private:
  explicit Netlink(Fd socket) : socket_(std::move(socket)) {}
  absl::StatusOr<std::vector<std::string>> DumpAll(uint16_t type, const std::string& body);
  absl::Status Send(uint16_t type, uint16_t flags, const std::string& body);
  // The messages of one datagram.
  absl::StatusOr<std::vector<std::string>> Receive();

  Fd socket_;
  uint32_t sequence_ = 0;
};

}  // namespace lockstep::drill
