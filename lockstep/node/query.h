// How the other subcommands ask about a run: from the process that watches it, over its control socket; from its
// journal when none does.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/base/doorway.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/control/machine.h"

namespace lockstep::node {

// The documents of control/report.h.
absl::StatusOr<Json> QueryStatus(const std::string& run_dir);
absl::StatusOr<Json> QueryIncidents(const std::string& run_dir);
// control::Story of one incident.
absl::StatusOr<Json> QueryWhy(const std::string& run_dir, int64_t incident);
// Asks the watching process to end the job.
absl::Status AskStop(const std::string& run_dir);
// Sends {"op": NAME, ...} to the watching process and waits for its answer; {"error": TEXT} comes back as
// kFailedPrecondition. kDeadlineExceeded: there was none in time; kResourceExhausted: it hung up; kUnavailable,
// kNotFound: nobody watches.
absl::StatusOr<Json> Ask(const std::string& run_dir, const Json& request);
// The same of what only a watching process can do. Errors say what became of the run.
absl::StatusOr<Json> AskWatched(const std::string& run_dir, const Json& request);
// FailedPrecondition: the watching process is in another PID namespace than this one, where the pids that it tells are
// those of others.
absl::Status CheckPidNamespace(const std::string& run_dir);
// As a coordinator calls itself in a journal that is shared.
std::string LeaderName(const std::string& endpoint);
// What a node that attends answers about what its coordinator knows.
std::string AskElsewhere(const std::string& coordinator);
// What the process that leads answers to {"op": "why", "incident": ...}.
Json AnswerWhy(const control::State& state, const Json& request, Nanos now);

// The answering side, in the poller of `lockstep run`.
class ControlSocket {
 public:
  // Gives one answer, now or later; what is given to a peer that is gone is dropped.
  using Reply = std::function<void(const Json&)>;
  // Answers {"op": NAME, ...}, but for {"op": "who"}, which gets {"pid": ...} of this process.
  using Answer = std::function<void(const Json& request, Reply reply)>;
  ControlSocket(Poller& poller, Answer answer) : poller_(poller), answer_(std::move(answer)) {}
  ~ControlSocket();
  absl::Status Listen(const std::string& run_dir);

 private:
  void Accept();
  void Serve(uint64_t peer);
  void Send(uint64_t peer, const Json& answer);

  Poller& poller_;
  Answer answer_;
  Doorway doorway_;
  uint64_t accepted_ = 0;
  std::map<uint64_t, Fd> peers_;  // by the order of their coming: descriptors are used again
};

}  // namespace lockstep::node
