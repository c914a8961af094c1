// One HTTP exchange at a time over one kept connection, TLS if the endpoint says https. Blocks up to its timeouts: for
// a thread that may wait. The only file of this part that knows the HTTP library.
//
//   LS_ASSIGN_OR_RETURN(const std::unique_ptr<Http> http, Http::Open("http://127.0.0.1:9000"));
//   LS_ASSIGN_OR_RETURN(const HttpAnswer answer, http->Send({"GET", "/bucket?list-type=2", {...}, {}}));
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::remote {

struct HttpRequest {
  std::string method, target;  // encoded
  std::map<std::string, std::string> headers;
  std::span<const std::byte> body;
};

struct HttpAnswer {
  int status = 0;
  std::string body, etag;
  uint64_t content_length = 0;  // as the header says it: of HEAD, that of the object
};

class Http {
 public:
  static absl::StatusOr<std::unique_ptr<Http>> Open(const std::string& endpoint);
  virtual ~Http() = default;
  // Unavailable: there was no answer.
  virtual absl::StatusOr<HttpAnswer> Send(const HttpRequest& request) = 0;
};

}  // namespace lockstep::remote
