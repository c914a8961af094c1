// The rendezvous store (torch's TCPStore) of the newest epoch that this node is to host. The store host has it
// (PythonHost), outside the ranks; where there is none, for want of torch, a free port is found and rank 0 binds it.
// Each answer goes to `is_at` once it is known, and again to whoever asks again. Lives in the poller's thread.
//
//   EpochStore store(spec, host, {.is_at = ..., .failed = ..., .note = ...});
//   store.Host(epoch, restart_count);   // -> host.AskStore, as soon as the host is known
//   store.Answered(epoch, port);        // the host's answer -> is_at
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/agent/python_host.h"
#include "lockstep/agent/spec.h"

namespace lockstep::agent {

// Why the ranks of this node can't reach a store that node 0 has at `host`; empty: nothing is known to be in the way.
// May block for a name server where something is.
std::string WhyOutOfReach(const RunSpec& spec, const std::string& host);

class EpochStore {
 public:
  struct Listener {
    std::function<void(uint64_t epoch, int port, bool hosted)> is_at;  // hosted: false: rank 0 is to bind the port
    std::function<void(uint64_t epoch, const std::string& error)> failed;
    std::function<void(const std::string& text)> note;  // for the user
  };

  EpochStore(const RunSpec& spec, PythonHost& host, Listener listener)
      : spec_(spec), host_(host), listener_(std::move(listener)) {}

  // Asked for again, by an agent that took over: says where it is. One of an older epoch: ignored.
  void Host(uint64_t epoch, int restart_count);
  // What the host can do is known now.
  void HostIsKnown();
  // port 0: there is no store host.
  void Answered(uint64_t epoch, int port);

 private:
  int WantedPort() const;
  void Tell();

  const RunSpec& spec_;
  PythonHost& host_;
  Listener listener_;
  uint64_t epoch_ = 0;  // 0: none yet
  int restart_count_ = 0;
  int port_ = 0;  // 0: not known yet
  bool hosted_ = true;
};

}  // namespace lockstep::agent
