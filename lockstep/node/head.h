// The coordinator of a job: a Conductor, which leads it, and what that knows nothing of: the journal, the judge of what
// ranks look like, the cluster's scheduler, and who looks on from outside. Where agents are, and how words get there,
// is the caller's business (lead.h). Lives in the poller's thread.
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
#include "lockstep/control/conductor.h"
#include "lockstep/control/coordinator.h"
#include "lockstep/control/judge.h"
#include "lockstep/control/plan_watch.h"
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
    std::function<void()> anew;                                // nobody was heard: all are to say again what they know
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
  // How the workers of a standby would start, by its token; empty: not known.
  void HearOfStandby(const std::string& token, const std::string& start_method) { standbys_[token] = start_method; }
  // It has left, or has a place.
  void ForgetStandby(const std::string& token) { standbys_.erase(token); }
  // Its agent is out of reach: nothing was heard of it for so long, or, without silence, its connection was closed.
  void Lost(int node, const std::string& why, Seconds silence = {});
  // The same, but it gave up this process, which was stopped, and comes anew soon. Lost, if it does not.
  void LeftUs(int node);
  // Of the user: a stop, a pause, a drill.
  void Handle(const control::EventBody& body) { conductor_->Handle(body); }
  // Unavailable: nothing but a stop can be asked for, as the coordinator waits for its journal.
  absl::Status CheckHears() const;
  // `lockstep update`. The answer names the version, and why it was dropped if it was. One to come at once waits, for a
  // bounded time, while no checkpoint is whole that is near.
  Json Update(control::UpdateAsked asked);
  void Tick();
  // This process itself was stopped for so long.
  void WasAway(Nanos away);
  // Nobody watched for a while: what was seen before says nothing about now.
  void LookAfresh() { judge_->LookAfresh(); }
  // At the end of the run: gives the webhook its time, and the scheduler back what is not needed any more.
  void Drain();

  const control::State& state() const { return coordinator_->state(); }
  bool IsWriting() const { return conductor_->IsWriting(); }
  // The documents of control/report.h.
  Json Status() const;
  Json Incidents() const;
  // To /metrics and /api.
  void Publish();

 private:
  absl::Status OpenServer();
  absl::Status OpenWebhook();
  std::vector<control::Command> Decide(const control::EventBody& body);
  void Lead(const std::vector<control::Command>& commands);
  void AwaitJournal();
  template <typename OfTheConductor>
  void Carried(const OfTheConductor&) {}
  void Carried(const control::Spawn& spawn);
  void Carried(const control::Seat& seat);
  void Carried(const control::Vacate& vacate);
  void Carried(const control::Resize& resize);
  void Carried(const control::AskForNodes& ask);
  void Carried(const control::Announce& announce);
  Json Posted(const incident::Incident& incident) const;
  void TellVersions(const std::vector<control::Update>& before);
  void TellAbsent(Nanos now);
  void TellUncommitted(Nanos now);
  void TellRest(Nanos now);
  bool HaveAttendedLeft() const;
  void Hurry(Nanos now);
  void TickJudge(Nanos now);
  void CompareWithPlan(Nanos now);
  void TickScheduler();
  std::vector<RankId> RanksOf(int node) const;

  const RunOptions& options_;
  const Clock& clock_;
  const Listener listener_;
  std::unique_ptr<store::Journal> journal_;
  std::unique_ptr<control::Coordinator> coordinator_;
  std::unique_ptr<control::Conductor> conductor_;
  std::unique_ptr<control::Judge> judge_;
  std::optional<control::PlanWatch> plan_watch_;
  bool looks_closely_ = false;
  int64_t unreadable_ = 0;
  std::map<std::string, std::string> standbys_;  // start methods, by token
  std::optional<Nanos> took_over_;
  std::optional<int> hurried_;  // an update that is asked for at once, and waits for a checkpoint
  bool absent_told_ = false, uncommitted_told_ = false, rest_told_ = false;
  std::unique_ptr<serve::Server> server_;
  std::unique_ptr<serve::Webhook> webhook_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace lockstep::node
