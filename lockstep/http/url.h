// The parts of an http URL that a client needs. No user names, no fragments, no escapes undone.
//
//   ParseUrl("https://[::1]:8443/hook?x=1")   // {true, "::1", 8443, "/hook?x=1"}
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::http {

struct Url {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  int port = 80;
  std::string target = "/";  // path and query

  // "http://host:port": what may be shown.
  std::string Origin() const;
};

absl::StatusOr<Url> ParseUrl(std::string_view url);

}  // namespace lockstep::http
