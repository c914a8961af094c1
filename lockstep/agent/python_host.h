// The starter's Python helpers: the zygote, which forks workers from an interpreter that has imported torch, and the
// store host, which holds the rendezvous store outside the ranks. Both are optional: without torch there is neither,
// and workers start by exec. One that does not answer in time is killed, and it goes on without: workers that the
// zygote was to fork then start by exec too. Single-threaded; requests are answered through callbacks from the poller.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/agent/launch.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/wire.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/poller.h"

namespace lockstep::agent {

// stdout and stderr of one worker, our write ends.
struct Stdio {
  Fd out, err;
};

class PythonHost {
 public:
  struct Listener {
    std::function<void()> ready;                          // zygote_ok() and why() are now known
    std::function<void(uint64_t epoch, int port)> store;  // port 0: there is no store host; rank 0 must host it
    std::function<void(uint64_t epoch, std::vector<pid_t>)> spawned;  // by the zygote
    std::function<void(uint64_t epoch, std::string error)> spawn_failed;
    // The zygote was lost before it said that it had forked them; some may be there, or come once its process has
    // ended.
    std::function<void(uint64_t epoch)> unspawned;
    std::function<void(const std::string& text)> note;  // for the user, once
  };

  PythonHost(const RunSpec& spec, const Clock& clock, Poller& poller, Listener listener);
  // Kills what is left of them; a stopped process would not notice that we are gone.
  ~PythonHost();
  // Starts the zygote (or, under exec, only the store host). listener.ready follows.
  void Start();
  // `port`: where it shall listen, if that is free; 0: anywhere.
  void AskStore(uint64_t epoch, int port);
  // Workers for these ranks. stdio: by rank. False: none was forked, for their variables and arguments are too much, or
  // the zygote takes nothing.
  bool Spawn(const EpochPlan& plan, const std::vector<int>& ranks, const std::vector<Stdio>& stdio);

  bool known() const { return known_; }  // what it can do
  bool zygote_ok() const { return zygote_ok_; }
  const std::string& why() const { return why_; }      // one line on why the zygote is not used; empty if it is
  const std::string& torch() const { return torch_; }  // its version; empty: unknown
  bool spawning() const { return spawn_asked_ != 0; }
  bool zygote_ends() const { return zygote_pid_ > 0 && !zygote_.valid(); }  // it was lost, and is not reaped yet
  // True for our helpers, which are not left-overs of an epoch.
  bool Owns(pid_t pid) const { return pid == zygote_pid_ || pid == store_pid_; }
  void Reaped(pid_t pid);
  void Tick();

 private:
  void StartZygote();
  void StartStoreHost();
  // False: there is nothing to be heard now.
  bool HearZygote();
  bool HearStore();
  void TakeFromZygote(const Packet& packet);
  void TakeFromStore(const Packet& packet);
  void ZygoteLost(const std::string& why);
  void StoreLost();

  const RunSpec& spec_;
  const Clock& clock_;
  Poller& poller_;
  Listener listener_;
  Fd zygote_, store_;
  pid_t zygote_pid_ = 0, store_pid_ = 0;
  uint64_t store_asked_ = 0;  // epoch that waits for a port; 0 = none
  uint64_t spawn_asked_ = 0;
  Nanos store_by_, spawn_by_;   // when the answer must have come
  Nanos import_began_;          // by the zygote
  bool told_slow_ = false;      // the user, of that import
  bool store_imports_ = false;  // it has torch to import before it can answer
  bool known_ = false, zygote_ok_ = false, has_torch_ = false, store_refused_ = false;
  std::string why_, torch_;
};

}  // namespace lockstep::agent
