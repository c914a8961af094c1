#include "lockstep/node/coordinate.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/clean.h"
#include "lockstep/base/host.h"
#include "lockstep/incident/fields.h"
#include "lockstep/node/endpoint.h"
#include "lockstep/node/kept_options.h"
#include "lockstep/node/lead.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/node/run_spec.h"
#include "lockstep/node/signals.h"
#include "lockstep/node/update.h"
#include "lockstep/node/view.h"
#include "lockstep/store/postgres_journal.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::node {
namespace {

constexpr Seconds kTick{0.1};
constexpr int kTicksPerPublish = 3;
constexpr Seconds kFarewell{5};

class CoordinatorProcess {
 public:
  CoordinatorProcess(const RunOptions& options, agent::RunSpec spec)
      : options_(options),
        spec_(std::move(spec)),
        view_(options.live_view),
        lead_(options_, poller_, clock_,
              {.line = [this](const std::string& text) { view_.Line(text); },
               .placed = [](const control::Place&) { return absl::OkStatus(); },
               .told = [](const control::Told&) {},
               .moved = [](const control::Place&) {},
               .failed = [this](const absl::Status& status) { Fail(status); }}),
        control_socket_(poller_,
                        [this](const Json& request, const ControlSocket::Reply& reply) { Answer(request, reply); }),
        signals_(poller_, options_.stop_signals, [this](int signal) { Stop(signal); }, [] {}) {}

  absl::Status Begin(const control::JobSpec& job) {
    LS_RETURN_IF_ERROR(Open());
    LS_RETURN_IF_ERROR(KeepSpec(spec_));
    LS_RETURN_IF_ERROR(lead_.KeepIn(spec_.run_dir));
    lead_.Await(job, spec_.run_token);
    const Endpoint endpoint = ParseEndpoint(options_.nodes.endpoint).value_or(Endpoint{});
    const bool on_all = ListenAddress(endpoint).starts_with("[::]:");
    const bool any = endpoint.host == "0.0.0.0" || endpoint.host == "::";
    view_.Line(fmt::format("the coordinator{} listens on {}{}; its run directory is {}",
                           job.name.empty() ? "" : " of " + job.name, options_.nodes.endpoint,
                           on_all ? " and all other addresses of this machine" : "", spec_.run_dir));
    if (on_all && !any && IsOwnAddress(endpoint.host, true).ok())
      view_.Line(fmt::format("{} is no address of this machine: agents find it there only if that is forwarded here",
                             endpoint.host));
    return absl::OkStatus();
  }
  absl::Status Resume() {
    for (const std::string& notice : options_.notices) view_.Line(notice);
    LS_RETURN_IF_ERROR(Open());
    LS_RETURN_IF_ERROR(lead_.KeepIn(spec_.run_dir));
    LS_RETURN_IF_ERROR(lead_.Resume(spec_.run_token));
    if (const absl::Status kept = KeepSpec(spec_); !kept.ok()) view_.Line(Message(kept));  // for the next one
    view_.Line(fmt::format("goes on with epoch {}", lead_.head().state().epoch.value()));
    return absl::OkStatus();
  }
  // With a journal that is shared: leads if nobody does, and stands in for whoever does.
  absl::Status StandIn(control::JobSpec job) {
    LS_RETURN_IF_ERROR(Open());
    LS_RETURN_IF_ERROR(KeepSpec(spec_));
    job_ = std::move(job);
    LS_ASSIGN_OR_RETURN(
        journal_, store::PostgresJournal::Open({spec_.journal, spec_.job, LeaderName(spec_.endpoint), spec_.run_token},
                                               system_clock_));
    shared_ = journal_.get();
    LS_ASSIGN_OR_RETURN(const control::State before, Replay());
    if (before.mode == control::Mode::kFinished)
      return FailedPrecondition("the journal's job {} has ended ({}): give the new one another name with --job",
                                spec_.job, before.verdict);
    return absl::OkStatus();
  }
  bool HoldsRunDir() const { return lock_.has_value(); }
  bool HasJob() const { return lead_.begun() || exit_code_; }  // that began, here or under others
  absl::StatusOr<int> Run() {
    poller_.Run(kTick, [this] { Tick(); });
    LS_RETURN_IF_ERROR(failure_);
    if (exit_code_) return *exit_code_;
    lead_.head().Drain();
    return lead_.head().state().exit_code;
  }

 private:
  // One that lives in the directory keeps its socket.
  absl::Status Open() {
    LS_ASSIGN_OR_RETURN(lock_, store::WriterLock::Take(spec_.run_dir + "/" + agent::kWatcherLock));
    LS_RETURN_IF_ERROR(control_socket_.Listen(spec_.run_dir));
    return lead_.Open();
  }

  absl::StatusOr<control::State> Replay() {
    LS_ASSIGN_OR_RETURN(const std::vector<store::Event> events, shared_->Read(0));
    return control::ReplayEvents(events);
  }

  // We were elected: the job goes on where the journal ends, or begins. Unavailable: not yet, for the server is away.
  absl::Status TakeOver() {
    const store::PostgresJournal::Term term = shared_->term();
    LS_ASSIGN_OR_RETURN(const control::State state, Replay());
    if (state.mode == control::Mode::kFinished) return EndWith(state);
    clock_.Continue(term.ahead);
    spec_.run_token = term.token;
    if (const absl::Status kept = KeepSpec(spec_); !kept.ok() && !std::exchange(not_kept_, true))
      view_.Line(fmt::format("it leads, though its run directory cannot be written: {}", Message(kept)));
    if (journal_) lead_.Keep(std::move(journal_));
    const bool has_begun = !state.spec.nodes.empty();
    if (has_begun) LS_RETURN_IF_ERROR(lead_.Resume(term.token));
    if (!has_begun) lead_.Await(job_, term.token);
    leads_ = true;
    view_.Line(fmt::format("leads {} from {}{}; its run directory is {}", spec_.job, options_.nodes.endpoint,
                           has_begun ? fmt::format(", and goes on with epoch {}", state.epoch.value()) : "",
                           spec_.run_dir));
    return absl::OkStatus();
  }

  // Another one led the job to its end.
  absl::Status EndWith(const control::State& state) {
    view_.Line(Clean(state.verdict));
    exit_code_ = state.exit_code;
    poller_.Stop();
    return absl::OkStatus();
  }

  void TickShared() {
    if (shared_->role() == store::PostgresJournal::Role::kLeads) {
      const absl::Status status = TakeOver();
      const bool still = shared_->role() == store::PostgresJournal::Role::kLeads;
      if (status.ok() || !still) return;
      if (!absl::IsUnavailable(status)) return Fail(status);
      const std::string why = Message(status);
      if (std::exchange(cannot_lead_, why) != why)
        view_.Line(fmt::format("would lead {}, and tries again: {}", spec_.job, why));
    } else if (const std::string leader = shared_->leader(); !leader.empty() && !std::exchange(stood_in_, true)) {
      view_.Line(fmt::format("stands in for the coordinator of {}, {}; its run directory is {}", spec_.job, leader,
                             spec_.run_dir));
    }
  }

  // Nothing that we would say or do now is of use: the agents attend, or will, whoever leads.
  void GiveUp() {
    view_.Line(fmt::format("another coordinator leads {}: {}; this one ends", spec_.job, shared_->leader()));
    exit_code_ = control::kExitLost;
    poller_.Stop();
  }

  void Fail(const absl::Status& status) {
    failure_ = status;
    poller_.Stop();
  }

  void Stop(int signal) {
    if (lead_.begun()) return lead_.head().Handle(control::StopAsked{signal});
    Fail(MakeError(absl::StatusCode::kCancelled,
                   stood_in_ ? "stopped while it stood in for another coordinator" : "stopped before the job began"));
  }

  Json Waiting() const {
    Json status = {{"state", "waiting"}, {"job", spec_.job}, {"endpoint", options_.nodes.endpoint}};
    if (!shared_ || leads_) return status;
    status["state"] = "stands in";
    status["leader"] = shared_->leader();
    return status;
  }

  void Answer(const Json& request, const ControlSocket::Reply& reply) {
    incident::Fields fields(request, "request");
    const std::string op = fields.Text("op");
    if (op == "status") return reply(lead_.begun() ? lead_.head().Status() : Waiting());
    if (op == "incidents") return reply(lead_.begun() ? lead_.head().Incidents() : Json::array());
    if (op == "why" && lead_.begun()) return reply(AnswerWhy(lead_.head().state(), request, clock_.Now()));
    if (op == "drill") return reply(Rehearse(request));
    if (op == "update") return reply(AnswerUpdate(request, lead_.begun() ? &lead_.head() : nullptr, ""));
    if (op == "stop") {
      Stop(SIGTERM);
      return reply({{"ok", true}});
    }
    reply({{"error", fmt::format("the coordinator has no workers: ask for {} on the node that has the rank", op)}});
  }

  // `lockstep drill kill-coordinator` is about to strike: written down first.
  Json Rehearse(const Json& request) {
    const absl::StatusOr<control::Drilled> drill = control::DrilledFromJson(request);
    if (!drill.ok()) return {{"error", Message(drill.status())}};
    if (!spec_.allow_drill)
      return {{"error", "this coordinator takes no drills: it was started without --allow-drill"}};
    if (drill->fault != control::kKillCoordinator || !lead_.begun())
      return {{"error", "only a coordinator that leads can be drilled here: ranks are, on the node that has them"}};
    if (const absl::Status hears = lead_.head().CheckHears(); !hears.ok() && !drill->withdrawn)
      return {{"error", Message(hears)}};
    view_.Line(fmt::format("drill: {}{}", control::Text(*drill), drill->withdrawn ? " was not done" : ""));
    lead_.head().Handle(control::EventBody(*drill));
    return {{"step", lead_.head().state().progress.step}, {"watcher_pid", getpid()}};
  }

  void Tick() {
    if (shared_ && shared_->role() == store::PostgresJournal::Role::kDeposed) return GiveUp();
    if (shared_ && !leads_) return TickShared();
    lead_.Tick();
    if (!lead_.begun()) return;
    if (++ticks_ % kTicksPerPublish == 0) {
      if (view_.is_live()) view_.Paint(lead_.head().Status(), lead_.head().Incidents());
      lead_.head().Publish();
    }
    const control::State& state = lead_.head().state();
    if (state.mode != control::Mode::kFinished) return;
    if (ended_.value == 0) {
      ended_ = clock_.Now();
      view_.Settle();
      view_.Line(Clean(state.verdict));
    }
    if (lead_.IsWriting()) last_written_ = clock_.Now();
    // The agents leave when they have heard that it is over.
    if (lead_.HaveAllHeard() || clock_.Now() - std::max(ended_, last_written_) > ToNanos(kFarewell)) poller_.Stop();
  }

  const RunOptions options_;
  agent::RunSpec spec_;
  SystemClock system_clock_;
  ContinuedClock clock_;  // the job's
  control::JobSpec job_;
  std::optional<store::WriterLock> lock_;
  std::unique_ptr<store::PostgresJournal> journal_;  // until we lead
  store::PostgresJournal* shared_ = nullptr;         // that one, also while lead_ has it
  Poller poller_;
  View view_;
  Lead lead_;
  ControlSocket control_socket_;
  Signals signals_;
  absl::Status failure_;
  std::optional<int> exit_code_;  // of a job that others led to its end, or lead
  bool leads_ = false, stood_in_ = false, not_kept_ = false;
  std::string cannot_lead_;  // why not yet, though it was elected
  Nanos ended_, last_written_;
  int ticks_ = 0;
};

// A coordinator whose journal is elsewhere may be started again in its directory, where nothing is that it needs.
absl::StatusOr<std::string> MakeCoordinatorDir(const std::string& path, const agent::RunSpec& spec) {
  LS_ASSIGN_OR_RETURN(const std::string planned, PlanRunDir(path, spec.job));
  const absl::StatusOr<agent::RunSpec> before = agent::ReadRunSpec(planned);
  if (!spec.journal.empty() && before.ok() && before->journal == spec.journal && before->job == spec.job)
    return before->run_dir;
  return MakeRunDir(path, spec.job);
}

}  // namespace

absl::StatusOr<int> Coordinate(const RunOptions& options) {
  LS_RETURN_IF_ERROR(AllowOpenFiles(0));
  agent::RunSpec spec;
  spec.job = options.job.empty() ? "coordinator" : options.job;
  spec.ranks = 0;
  spec.allow_drill = options.allow_drill;
  spec.endpoint = options.nodes.endpoint;
  spec.journal = options.journal;
  spec.watching = KeptOptions(options);
  LS_ASSIGN_OR_RETURN(spec.run_token, MakeToken());
  LS_ASSIGN_OR_RETURN(spec.run_dir, MakeCoordinatorDir(options.run_dir, spec));
  BlockSignals(options.stop_signals);
  const control::JobSpec job = MakeJob(options);
  const std::string run_dir = spec.run_dir;
  const bool is_new = !HoldsRun(run_dir);
  RunOptions in_place = options;
  in_place.run_dir = run_dir;
  CoordinatorProcess process(in_place, std::move(spec));
  const absl::Status begun = options.journal.empty() ? process.Begin(job) : process.StandIn(job);
  absl::StatusOr<int> ended = begun.ok() ? process.Run() : begun;
  if (is_new && process.HoldsRunDir() && !process.HasJob()) ForgetRun(run_dir);
  return ended;
}

absl::StatusOr<int> ResumeCoordinating(const std::string& run_dir, const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(const std::string found, FindRunDir(run_dir));
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, agent::ReadRunSpec(found));
  LS_RETURN_IF_ERROR(CheckInPlace(found, spec));
  LS_RETURN_IF_ERROR(CheckOwner(found));
  LS_RETURN_IF_ERROR(AllowOpenFiles(0));
  if (spec.ranks != 0) return InvalidArgument("{} is a run of `lockstep run`; resume it with that", found);
  if (!spec.journal.empty())
    return InvalidArgument("the journal of {} is in PostgreSQL: start the coordinator as before, with --journal",
                           found);
  RunOptions same = options;
  same.resumes = true;
  same.nodes.endpoint = spec.endpoint;
  same.run_dir = spec.run_dir;
  spec.watching = KeptOptions(options);
  BlockSignals(options.stop_signals);
  CoordinatorProcess process(same, std::move(spec));
  LS_RETURN_IF_ERROR(process.Resume());
  return process.Run();
}

}  // namespace lockstep::node
