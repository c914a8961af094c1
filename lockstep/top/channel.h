// One question at a time to a process with a socket of packets, such as the one that watches a run, without waiting for
// the answer. A new connection is made where the old one broke.
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::top {

class Channel {
 public:
  Channel(Poller& poller, std::string socket, std::function<void(Json)> answered);
  ~Channel() { Close(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  // Nothing while the answer to the last question is awaited; an error when nobody watches.
  absl::Status Ask(const Json& question);
  bool waiting() const { return waiting_; }
  // Awaits no answer any more.
  void Close();

 private:
  void Hear();

  Poller& poller_;
  std::string path_;
  std::function<void(Json)> answered_;
  Fd socket_;
  bool waiting_ = false;
};

}  // namespace lockstep::top
