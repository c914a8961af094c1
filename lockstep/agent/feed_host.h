// The data services of a run (`lockstep run --feed`), one process for each data set, children of the starter: they
// outlive every watcher and all epochs of the job, with what they hold in memory, and end with the starter, however
// that ends. One that dies is started anew at once, or, if it had not run for long, after a while; loaders wait for it
// meanwhile. Single-threaded.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

// Where the service of a data set listens, and what it has to say.
std::string FeedSocket(const RunSpec& spec, const std::string& name);
std::string FeedLog(const RunSpec& spec, const std::string& name);

class FeedHost {
 public:
  using Note = std::function<void(const std::string& text)>;  // for the user

  FeedHost(const RunSpec& spec, const Clock& clock, Note note);
  ~FeedHost();  // all are gone
  // Returns when all answer. Error: one can't begin, with its own words; none is left.
  absl::Status Start();
  bool Owns(pid_t pid) const;
  // One of ours has ended.
  void Reaped(pid_t pid, int wait_status);
  // Now and then: starts those anew whose time has come.
  void Tick();

 private:
  struct Service {
    FeedSpec feed;
    pid_t pid = 0;         // 0: it does not run
    Fd life;               // its end tells it that we are gone
    Nanos started, again;  // again: not before then
    int in_a_row = 0;      // deaths soon after the start
  };

  absl::Status Launch(Service& service);
  absl::Status AwaitReady(Service& service) const;

  const RunSpec& spec_;
  const Clock& clock_;
  const Note note_;
  std::vector<Service> services_;
};

}  // namespace lockstep::agent
