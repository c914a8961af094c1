// The HTTP side of a run: GET /metrics (Prometheus text 0.0.4) and GET /api/v1/status (the document of `lockstep status
// --json`). Invariants: a request sees one snapshot whole and never touches the job; a connection carries one request
// and lives at most five seconds from when a thread has it; of more than 64 the newest are closed; beyond loopback
// nothing is served without a token. Destruction ends the server within 100 ms, whatever clients do. Thread-safe. One
// thread accepts, eight answer, so that clients who say nothing hold others up only where there are as many; a page is
// rendered when it is asked for.
//
//   LS_ASSIGN_OR_RETURN(auto server, Server::Start({.port = 9464}));
//   server->Publish(StatusReport(...), IncidentsReport(...));       // as often as there is news
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;         // 0: any free one, which port() tells
  std::string token{};  // if not empty, requests must carry "Authorization: Bearer <token>"
};

class Server {
 public:
  // InvalidArgument: unknown host, bad port, or no token beyond loopback. Unavailable: the port is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  ~Server();
  int port() const;
  void Publish(Json status, Json incidents);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::serve
