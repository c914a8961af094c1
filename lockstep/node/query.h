// How the other subcommands ask about a run: from the process that watches it, over its control socket; from its
// journal when none does.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::node {

// The documents of control/report.h.
absl::StatusOr<Json> QueryStatus(const std::string& run_dir);
absl::StatusOr<Json> QueryIncidents(const std::string& run_dir);
// Asks the watching process to end the job. NotFound: nobody watches.
absl::Status AskStop(const std::string& run_dir);

// The answering side, in the poller of `lockstep run`.
class ControlSocket {
 public:
  // Answers {"op": NAME} with what `answer` returns.
  using Answer = std::function<Json(const std::string& op)>;
  ControlSocket(Poller& poller, Answer answer) : poller_(poller), answer_(std::move(answer)) {}
  ~ControlSocket();
  absl::Status Listen(const std::string& run_dir);

 private:
  void Accept();
  void Serve(int fd);

  Poller& poller_;
  Answer answer_;
  Fd listener_;
  std::map<int, Fd> peers_;
};

}  // namespace lockstep::node
