// The agent of one node: carries the control plane's commands out on the starter and the workers, and tells it what it
// sees. Lives in the poller's thread; slow work (stacks, CRCs) happens in one background thread.
//
//   Agent agent(spec, policy, poller, clock, {.event = [&](const control::EventBody& body) { ... }, ...});
//   LS_RETURN_IF_ERROR(agent.Launch());      // or Adopt(): the workers ran on, we are new
//   agent.Execute(command);  agent.Tick();
#pragma once

#include <functional>
#include <string>

#include "lockstep/agent/background.h"
#include "lockstep/agent/exception.h"
#include "lockstep/agent/exit_watch.h"
#include "lockstep/agent/flusher.h"
#include "lockstep/agent/link.h"
#include "lockstep/agent/load.h"
#include "lockstep/agent/record_log.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/watch.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/control/machine.h"
#include "lockstep/control/report.h"

namespace lockstep::agent {

class Agent {
 public:
  struct Listener {
    std::function<void(const control::EventBody&)> event;
    std::function<void(int rank, int stream, std::string_view data)> output;
    std::function<void(const std::string& text)> note;
    std::function<void()> ready;                   // the starter said hello: commands can be carried out
    std::function<void()> lost;                    // the starter died, and with it all that can be known of the workers
    std::function<const control::State&()> state;  // the control plane's, as of now
  };

  Agent(RunSpec spec, const detect::Policy& policy, Poller& poller, const Clock& clock, Listener listener);
  // Before either of the next two: takes the right to write checkpoints to disk, if the run keeps any.
  absl::Status OpenDisk() { return flusher_.Open(); }
  absl::Status Launch();
  absl::Status Adopt();

  // Announce and Finish are the composer's business and are ignored here.
  void Execute(const control::Command& command);
  void Tick();
  void SignalWorkers(int signal) { link_.Signal(signal); }
  // This process itself was stopped for a while.
  void WasAway() { watch_.LookAfresh(); }
  // The job is over: the newest checkpoint goes to disk, if it isn't there; then done(). Tick() goes on meanwhile.
  void FlushLast(std::function<void()> done);
  void GiveUpFlush();
  // Ends whatever runs, and the starter.
  void End() { link_.End(); }

  // Reads the stacks of one rank of the acting epoch in the background; `done` gets them as text in the poller's
  // thread.
  void ReadStacks(RankId rank, const std::function<void(const std::string& text)>& done);

  control::Observed Observe() const;
  const RunSpec& spec() const { return spec_; }

 private:
  void TakeHello(const StarterLink::Hello& hello);
  void StarterLost();
  void WorkersRun(uint64_t epoch, const std::vector<pid_t>& pids);
  void WorkerExited(uint64_t epoch, const Worker& worker);
  std::optional<ExceptionNote> NoteOf(uint64_t epoch, const Worker& worker);
  void WorkerEnds(int rank);
  void FollowLives();
  void Do(const control::Spawn& command);
  void Do(const control::KeepStacks& command);
  void Do(const control::WaitForCulprit& command);
  void Do(const control::KillEpoch& command);
  void Do(const control::ChooseRestore& command);
  void Do(const control::PublishRestore& command);
  void Do(const control::Announce&) {}
  void Do(const control::Finish&) {}
  void Restored(EpochId next, const checkpoint::RestoreChoice& choice, Loaded& loaded);
  void PublishLoaded(const checkpoint::Manifest& manifest, std::vector<RankBuffers> buffers);
  void SampleStacks();

  RunSpec spec_;
  Poller& poller_;
  const Clock& clock_;
  Listener listener_;
  StarterLink link_;
  Watch watch_;
  RecordLog records_;
  Flusher flusher_;
  std::string start_method_;  // of the acting epoch; empty before there are workers
  control::WaitForCulprit waiting_for_culprit_;
  Nanos culprit_deadline_;  // 0: not waiting
  Nanos stacks_sampled_;
  bool sampling_ = false;
  size_t followed_ = 0;  // ranks of the acting epoch whose lives exit_watch_ follows
  ExitWatch exit_watch_;
  Background background_;  // last: its thread stops before what its jobs use goes away
};

}  // namespace lockstep::agent
