// The coordinator of a job: hears the agents of its nodes, drives the state machine, and tells the agents what to do.
// Where they are, and how words get there, is the caller's business (lead.h). Lives in the poller's thread.
//
//   Head head(options, clock, {.tell = [&](int node, const control::Told& told) { ... }, ...});
//   LS_RETURN_IF_ERROR(head.Open());
//   head.Keep(std::move(journal));
//   LS_RETURN_IF_ERROR(head.Begin(job));             // or Resume()
//   head.Hear(node, said);  head.Lost(node, why);  head.Tick();
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/control/coordinator.h"
#include "lockstep/control/fleet.h"
#include "lockstep/control/judge.h"
#include "lockstep/control/plan_watch.h"
#include "lockstep/control/replay_search.h"
#include "lockstep/node/options.h"
#include "lockstep/node/scheduler.h"
#include "lockstep/serve/server.h"
#include "lockstep/serve/webhook.h"
#include "lockstep/store/journal.h"

namespace lockstep::node {

class Head {
 public:
  struct Listener {
    std::function<void(int node, const control::Told&)> tell;
    std::function<void(const control::Seat&)> seat;            // who is to be told as this node is another one now
    std::function<void(const control::Vacate&)> vacate;        // nobody is
    std::function<void(const std::vector<int>& from)> resize;  // nodes count anew: which number each had, -1: none
    std::function<void(const std::string&)> line;              // for the terminal
  };

  Head(const RunOptions& options, const Clock& clock, Listener listener);
  // HTTP server and webhook.
  absl::Status Open();
  // Where everything is written down from now on.
  void Keep(std::unique_ptr<store::Journal> journal) { journal_ = std::move(journal); }
  absl::Status Begin(const control::JobSpec& job);
  // Who is asked for machines from now on.
  void Use(std::unique_ptr<Scheduler> scheduler) { scheduler_ = std::move(scheduler); }
  // So many are asked for now, and have not come.
  int machines_wanted() const { return scheduler_ ? scheduler_->machines_wanted() : 0; }
  // FailedPrecondition: the run has ended.
  absl::Status Resume();

  void Hear(int node, const control::Said& said);
  // An agent said something that is of a newer version, or damaged.
  void NoteUnreadable(const absl::Status& why);
  // Its agent is out of reach.
  void Lost(int node, const std::string& why);
  // Of the user: a stop, a pause, a drill.
  void Handle(const control::EventBody& body);
  // `lockstep update`. The answer names the version, and why it was dropped if it was. One to come at once waits, for a
  // bounded time, while no checkpoint is whole that is near.
  Json Update(control::UpdateAsked asked);
  void Tick();
  // This process itself was stopped for a while.
  void WasAway();
  // At the end of the run: gives the webhook its time, and the scheduler back what is not needed any more.
  void Drain();

  const control::State& state() const { return coordinator_->state(); }
  // Node 0 may be writing the last checkpoint.
  bool IsWriting() const { return !disk_done_ && nodes_.front().attends; }
  // The documents of control/report.h.
  Json Status() const;
  Json Incidents() const;
  // To /metrics and /api.
  void Publish();

 private:
  struct Node {
    bool attends = false;  // its agent has said all that it knows
    Nanos lost_since;      // 0: it is not lost
    bool asked_stop = false;
    control::Observed observed;
    Nanos observed_at;
  };

  void Hear(int node, const control::EventBody& said);
  void Hear(int node, const control::RestoreFound& found);
  void Hear(int node, const control::Holding& holding);
  void Hear(int node, const control::Samples& samples);
  void Hear(int, const control::CommunicationSeen& seen) { judge_->Add(seen); }
  void Hear(int node, const control::StacksSeen& seen) { judge_->Add(node, seen); }
  void Hear(int node, const control::StoreAt& store);
  void Hear(int node, const control::KeepsAt& where);
  void Hear(int, const control::FlushWanted& wanted);
  void Hear(int, const control::PartWritten& part) { Tell(0, part); }
  void Hear(int, const control::DiskDone& done);
  void Hear(int node, const control::Observed& observed);
  void Hear(int node, const control::ReplayReady& ready);
  void Hear(int node, const control::ReplayEnded& ended);
  void Hear(int node, const control::AllSaid& said);
  void Handle(const std::vector<control::EventBody>& events);
  void Seat(const control::Seat& seat);
  void Vacate(const control::Vacate& vacate);
  void Resize(const std::vector<int>& from);
  void HearLater(const std::vector<control::EventBody>& events);
  void GoOnWithout(int node);
  void GiveUpPart(int node);
  void FlushIfAllAttend();
  void AwaitStop(const control::WaitForStop& wait);
  void StopIsOverdue();
  void LoseTheStuck();
  void EndWaits(Nanos now);
  void Ask(const control::Probe& probe);
  control::Told Asked(int node, const control::Command& command) const;
  void TellReplay();
  void LeaveReplay();
  void LookForTheGone(Nanos now);
  void TellAbsent(Nanos now);
  void TellUncommitted(Nanos now);
  bool IsUncommitted() const;
  void UpdateIfDue(Nanos now);
  bool Trains() const;
  bool IsAnyAway() const;
  std::vector<std::string> AbsentBeside(int node) const;
  void GrowIfDue(Nanos now);
  void CompareWithPlan(Nanos now);
  void TickScheduler();
  void Carry(const std::vector<control::Command>& commands);
  void CarryEach(const std::vector<control::Command>& commands);
  void BeginEpochs();
  void TellCommit();
  void TellStages(const std::vector<control::VersionStage>& before);
  void TellKeeper(int node);
  std::vector<RankId> RanksOf(int node) const;
  void TellAll(const control::Told& told);
  void Tell(int node, const control::Told& told);
  void TellSpawn(const control::Spawn& spawn, std::optional<int> only);
  void Announce(const incident::Incident& incident);
  std::string NameOf(int node) const;

  const RunOptions& options_;
  const Clock& clock_;
  const Listener listener_;
  std::unique_ptr<store::Journal> journal_;
  std::unique_ptr<control::Coordinator> coordinator_;
  std::unique_ptr<control::Fleet> fleet_;
  std::unique_ptr<control::Judge> judge_;
  std::optional<control::PlanWatch> plan_watch_;
  std::unique_ptr<control::ReplaySearch> replay_;  // while the job is probing for it
  std::vector<Node> nodes_;
  std::optional<control::StoreAt> store_;  // of the epoch that is being spawned
  std::optional<control::Spawn> spawn_;    // waits for its store
  Nanos culprit_deadline_;                 // 0: not waiting
  EpochId culprit_epoch_;
  Nanos probe_deadline_, stop_deadline_, stuck_deadline_;  // 0: not waiting
  EpochId stop_epoch_;
  bool carrying_ = false;
  std::vector<control::EventBody> later_;  // what follows from commands that are being carried out
  bool looks_closely_ = false, disk_done_ = false;
  std::optional<control::CheckpointId> flush_wanted_;  // by node 0, which has no answer yet
  std::optional<control::CheckpointId> flushing_;      // that goes to disk, or went last
  int64_t unreadable_ = 0;
  std::optional<int> hurried_;  // an update that is asked for at once, and waits for a checkpoint
  size_t holdings_ = 0;         // heard since the last look at all of them
  Nanos newest_step_end_, advanced_at_;
  std::optional<Nanos> took_over_;
  bool absent_told_ = false, uncommitted_told_ = false;
  std::unique_ptr<serve::Server> server_;
  std::unique_ptr<serve::Webhook> webhook_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace lockstep::node
