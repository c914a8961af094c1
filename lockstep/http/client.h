// One HTTP exchange at a time over one kept connection, TLS if the endpoint says https. Blocks up to its timeouts: for
// a thread that may wait. The only file of this part that knows the HTTP library.
//
//   LS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Open("http://127.0.0.1:9000"));
//   LS_ASSIGN_OR_RETURN(const Answer answer, client->Send({"GET", "/bucket?list-type=2", {...}, {}}));
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::http {

struct Request {
  std::string method, target;  // encoded
  std::map<std::string, std::string> headers;
  std::span<const std::byte> body = {};
  size_t max_body = std::numeric_limits<size_t>::max();  // of the answer; what is longer is cut short, and `cut` set
  Seconds longest{3600};                                 // until the answer is whole, beside what its bytes take
  double bytes_per_second = std::numeric_limits<double>::infinity();  // at so many a second
};

struct Answer {
  int status = 0;
  std::string body = {}, etag = {}, last_modified = {}, content_range = {}, location = {};
  uint64_t content_length = 0;  // as the header says it: of HEAD, that of the object
  bool cut = false;
};

class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Open(const std::string& endpoint);
  virtual ~Client() = default;
  // Unavailable: there was no answer, or it ended too early.
  virtual absl::StatusOr<Answer> Send(const Request& request) = 0;
  // From another thread: what Send waits for has failed.
  virtual void Stop() = 0;
};

}  // namespace lockstep::http
