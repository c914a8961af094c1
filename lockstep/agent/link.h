// The agent's end of the starter: launches it or finds it again, tells it what to do, hears what became of the workers.
// Single-threaded; everything arrives through the poller.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/agent/buffers.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/wire.h"
#include "lockstep/agent/workers.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"
#include "lockstep/control/link.h"

namespace lockstep::agent {

// Whether a starter runs there that answers. One that is dying still takes connections, and says nothing.
absl::Status LookForStarter(const std::string& run_dir);

class StarterLink {
 public:
  struct Hello {
    uint64_t epoch = 0;
    int restart_count = 0;
    bool stopped = false, zygote = false;
    Nanos unheard_since;  // on the wall: from then on nobody heard what workers print; 0: all was heard
    std::vector<Worker> workers;
  };
  struct Listener {
    std::function<void(const Hello&)> hello;
    std::function<void(uint64_t epoch, int port, bool hosted)> store;
    std::function<void(uint64_t epoch, const std::vector<pid_t>&, bool by_zygote)> spawned;
    std::function<void(uint64_t epoch, const std::string& error)> spawn_failed;
    std::function<void(uint64_t epoch, const Worker&)> exited;
    std::function<void(uint64_t epoch)> stopped;
    std::function<void(const std::string& text)> note;
    std::function<void(int rank, const Fd& ring)>
        ring;  // a rank's record ring; the listener maps what it wants to keep
    std::function<void(int rank, int stream, std::string_view data)> output;
    std::function<void()> lost;  // the starter is dead
  };

  StarterLink(const RunSpec& spec, Poller& poller, Listener listener);
  ~StarterLink();
  // Starts `lockstep starter RUNDIR` in a session of its own and connects. An error carries what it said.
  absl::Status Launch();
  // Connects to the starter that runs. NotFound: there is none (any more).
  absl::Status Connect();
  // A worker that starts now finds this starter in the run directory. Once connected.
  absl::Status CheckDoor() const;

  // This node has another place from now on. No worker runs.
  void Seat(const control::Place& place);
  void HostStore(const control::HostStore& wish);
  // `code`: as in EpochPlan.
  void Spawn(const control::Spawn& command, const std::string& code_root, const std::string& code);
  // Ends the epoch. With grace 0, ranks that offer to leave their function keep their process, except those in
  // `suspects` (of this node, counted from 0), and except where `command.anew` is set.
  void Kill(const control::KillEpoch& command, const std::vector<int>& suspects);
  void Signal(int signal);
  // The user knows that output was not heard.
  void UnheardTold();
  void End();
  // These hold what rank is to restore; the starter keeps them from now on, and gives them to the worker.
  void Give(int rank, RankBuffers buffers);

  // Valid after hello.
  const BoardMap* board() const { return board_ ? &*board_ : nullptr; }
  const std::map<int, RankBuffers>& buffers() const { return buffers_; }
  // Grows whenever one of them is another memory than before.
  uint64_t buffers_generation() const { return buffers_generation_; }
  const DroppedOutput& dropped() const { return dropped_; }
  // "zygote" or "exec": how workers would start now; empty: not known yet.
  const std::string& start_method() const { return start_method_; }

 private:
  void Send(const Json& request, std::vector<int> fds = {});
  void Hear();
  void HearEvent(const Json& event, std::vector<Fd>& fds);
  void TakeHello(const Json& event, std::vector<Fd>& fds);

  const RunSpec& spec_;
  Poller& poller_;
  Listener listener_;
  Fd socket_;
  std::optional<BoardMap> board_;
  std::map<int, RankBuffers> buffers_;
  uint64_t buffers_generation_ = 0;
  DroppedOutput dropped_;
  std::string start_method_;
};

}  // namespace lockstep::agent
