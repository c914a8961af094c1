// The agent of one node: carries the control plane's commands out on the starter and the workers, and tells it what it
// sees. Lives in the poller's thread. Stacks and CRCs are read in one background thread (background.h); the board's
// futexes, inspection, probes, replays, peers' checkpoints (lockstep/keep) and work on disks (flight.h) have threads of
// their own, which answer through the poller.
//
//   Agent agent(spec, inspections, poller, clock, {.say = [&](control::Said said) { ... }, ...});
//   LS_RETURN_IF_ERROR(agent.Launch());      // or Adopt(): the workers ran on, we are new
//   agent.Hear(told);  agent.Tick();
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <string>
#include <variant>

#include "lockstep/agent/alert_book.h"
#include "lockstep/agent/background.h"
#include "lockstep/agent/board_watch.h"
#include "lockstep/agent/commit_watch.h"
#include "lockstep/agent/exception.h"
#include "lockstep/agent/flusher.h"
#include "lockstep/agent/inspection.h"
#include "lockstep/agent/keeping.h"
#include "lockstep/agent/link.h"
#include "lockstep/agent/load.h"
#include "lockstep/agent/loss_watch.h"
#include "lockstep/agent/part_writer.h"
#include "lockstep/agent/probing.h"
#include "lockstep/agent/record_log.h"
#include "lockstep/agent/replaying.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/uploader.h"
#include "lockstep/agent/watch.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/control/link.h"

namespace lockstep::agent {

class Agent {
 public:
  struct Listener {
    std::function<void(const control::Said&)> say;  // to the coordinator
    std::function<void(int rank, int stream, std::string_view data)> output;
    std::function<uint64_t()> left_out;  // bytes of output, so far, that the console did not take
    std::function<void(const std::string& text)> note;
    std::function<void()> lost;   // the starter died, and with it all that can be known of the workers
    std::function<void()> moved;  // spec() has another place: what is held is its own from now on
  };

  Agent(RunSpec spec, inspect::Settings inspections, Poller& poller, const Clock& clock, Listener listener);
  // Before either of the next two: on node 0, takes the right to write checkpoints to disk, if the run keeps any.
  absl::Status OpenDisk() { return spec_.place.node == 0 ? flusher_.Open() : absl::OkStatus(); }
  absl::Status Launch();
  // It was a standby, and has a place now.
  void Seat(const control::Place& place);
  // It has another place in the coming epoch: from when it is told where that begins. Until then what it holds, and
  // says of it, has the old numbers. One that holds nothing has the new ones at once.
  void Move(const control::Place& place);
  absl::Status Adopt();
  bool ready() const { return ready_; }  // has heard of the starter how things are

  // From the coordinator. Announce, Seat, Vacate, Resize, WaitForCulprit, WaitForStop and AskForNodes are carried out
  // by the coordinator and do nothing here. Whoever owns this agent acts on Finish as well.
  void Hear(const control::Told& told);
  // Says all that it knows: the coordinator is new, or back. Nothing before the starter said hello, which does it too.
  void SayAll();
  void Tick();
  void SignalWorkers(int signal) { link_.Signal(signal); }
  // The job is over: the newest checkpoint goes to disk, if it isn't there; then done(). Tick() goes on meanwhile, and
  // Hear(): of several nodes, the last word is node 0's.
  void FlushLast(std::function<void()> done);
  void GiveUpFlush();
  // Ends whatever runs, and the starter.
  void End() { link_.End(); }

  // Reads the stacks of one rank of the acting epoch in the background; `done` gets them as text in the poller's
  // thread.
  void ReadStacks(RankId rank, const std::function<void(const std::string& text)>& done);

  control::Observed Observe();
  // We have been told to kill this epoch, or it never was ours: what its workers do now tells nothing.
  bool IsKilling(EpochId epoch) const { return epoch.value() != watch_.epoch() || killing_; }
  EpochId epoch() const { return EpochId(watch_.epoch()); }
  int restart_count() const { return restart_count_; }
  control::Progress progress() const;
  // All ranks of this node step as they should: looking twice as rarely loses nothing.
  bool IsSteady() const;
  // A worker runs.
  bool HasWorkers() const;
  const RunSpec& spec() const { return spec_; }

 private:
  absl::Status OpenKeeping();
  void GiveUpKept();
  void StopProbes();
  void TakeHello(const StarterLink::Hello& hello);
  void TellUnheard(Nanos since);
  void StarterLost();
  void WorkersRun(uint64_t epoch, const std::vector<pid_t>& pids);
  void WorkerExited(uint64_t epoch, const Worker& worker);
  std::optional<ExceptionNote> NoteOf(uint64_t epoch, const Worker& worker);
  void WorkerEnds(int rank);
  void FollowLives();
  void Remember(EpochId epoch, const control::EventBody& event);
  void AllStopped(uint64_t epoch);
  void SayLoopBegins();
  template <std::same_as<control::Command> C>  // itself: a command without a Do() of its own does not compile
  void Do(const C& command) {
    std::visit([this](const auto& body) { Do(body); }, command);
  }
  void Do(const control::Commit& commit);
  void Do(const control::LookClosely& look);
  void Do(const control::HostStore& wish) { link_.HostStore(wish); }
  void Do(const control::ChooseOnDisk& question);
  void Do(const control::FetchKept& question);
  void Do(const control::KeepWith& keeper);
  void Do(const control::WritePart& command);
  void Do(const control::PartWritten& part) { flusher_.Hear(part); }
  void Do(const control::DiskDone&);
  void Do(const control::ReplayRun& run) { replaying_.Begin(spec_, run); }
  void Do(const control::ReplayStop& stop) { replaying_.Stop(stop); }
  void Do(const control::Spawn& command);
  void Do(const control::KeepStacks& command);
  void Do(const control::WaitForCulprit&) {}
  void Do(const control::KillEpoch& command);
  void Do(const control::ChooseRestore& command);
  void Do(const control::PublishRestore& command);
  void Do(const control::Announce&) {}
  void Do(const control::Seat&) {}
  void Do(const control::Vacate&) {}
  void Do(const control::Resize&) {}
  void Do(const control::Probe& command);
  void Do(const control::WaitForStop&) {}
  void Do(const control::KeepCode& command);
  void Do(const control::AskForNodes&) {}
  void Do(const control::Finish&);
  void KeepFirst();
  void SayFirst();
  control::HeldAs NextPlace() const;
  void LoadAndSay(std::function<Loaded(const RunSpec&)> load, const control::RestoreFound& answer);
  void PublishLoaded(Loaded loaded);
  void TakeDisk();
  void TakeNextPlace(const std::optional<control::CheckpointId>& point);
  void SayWhere();
  void TickDisk();
  bool BeginPart(const control::WritePart& command);
  void LeaveDisk();
  void SampleStacks();
  void SayCommunication();
  void SayHolding();
  bool IsKept(const control::CheckpointId& id);
  void Inspect();
  void HearAlert(const inspect::Alert& alert);

  RunSpec spec_;
  const inspect::Settings inspections_;
  // The place to come. Slots are verified once for it, for they may be about to be the new world's.
  struct Coming {
    control::Place place;
    EpochId asked;                                 // ChooseRestore for this epoch was heard,
    std::optional<control::RestoreFound> found{};  // and is answered
  };
  std::optional<Coming> coming_;
  Poller& poller_;
  const Clock& clock_;
  Listener listener_;
  StarterLink link_;
  Watch watch_;
  LossWatch losses_;
  CommitWatch commits_;
  RecordLog records_;
  PartWriter part_writer_;
  std::optional<control::WritePart> write_next_;  // when that has done what it does
  Uploader uploader_;                             // of node 0
  Flusher flusher_;                               // likewise
  std::optional<Loaded> loaded_;                  // in answer to the newest question
  std::shared_ptr<const MappedBuffers> mapped_;   // shared with whoever reads them in another thread
  uint64_t mapped_generation_ = 0;
  std::function<void()> flushed_last_;
  bool disk_done_ = false;
  std::string start_method_;  // of the acting epoch; empty before there are workers
  int restart_count_ = 0;     // its restarts before
  // What was said of the acting epoch, and is said again to a coordinator that comes back.
  std::vector<control::EventBody> said_;
  EpochId said_epoch_;
  uint64_t told_loop_of_ = 0;
  control::Holding holding_;  // as it was told
  bool ready_ = false, killing_ = false, finished_ = false, keeping_first_ = false;
  control::CodeKept first_kept_;  // the answer; said again to a coordinator that comes back
  Nanos stacks_sampled_, observed_told_, trails_read_;
  bool sampling_ = false, reading_trails_ = false;
  size_t followed_ = 0;  // ranks of the acting epoch whose lives board_watch_ follows
  BoardWatch board_watch_;
  Probing probing_;
  Replaying replaying_;
  AlertBook alerts_;
  std::map<int64_t, RankId> ranks_;       // by process, of all epochs that ran under this agent
  std::optional<Keeping> keeping_;        // of a job of several nodes
  std::optional<Inspection> inspection_;  // of the machine, from Launch() or Adopt() on
  Background background_;                 // last: its thread stops before what its jobs use goes away
};

}  // namespace lockstep::agent
