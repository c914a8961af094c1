#include "lockstep/node/coordinate.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/incident/fields.h"
#include "lockstep/node/lead.h"
#include "lockstep/node/plan.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/node/signals.h"
#include "lockstep/node/view.h"

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
               .failed = [this](const absl::Status& status) { Fail(status); }}),
        control_socket_(poller_,
                        [this](const Json& request, const ControlSocket::Reply& reply) { Answer(request, reply); }),
        signals_(
            poller_, options_.stop_signals, [this](int signal) { Stop(signal); }, [] {}),
        begun_(clock_.Now()) {}

  absl::Status Begin(const control::JobSpec& job) {
    LS_RETURN_IF_ERROR(Open());
    lead_.Await(job, spec_.run_token);
    view_.Line(fmt::format("the coordinator of {} listens on {}; its run directory is {}", spec_.job,
                           options_.nodes.endpoint, spec_.run_dir));
    return absl::OkStatus();
  }
  absl::Status Resume() {
    LS_RETURN_IF_ERROR(Open());
    LS_RETURN_IF_ERROR(lead_.Resume(spec_.run_token));
    view_.Line(fmt::format("goes on with epoch {}", lead_.head().state().epoch.value()));
    return absl::OkStatus();
  }
  absl::StatusOr<int> Run() {
    poller_.Run(kTick, [this] { Tick(); });
    LS_RETURN_IF_ERROR(failure_);
    lead_.head().Drain();
    return lead_.head().state().exit_code;
  }

 private:
  absl::Status Open() {
    LS_RETURN_IF_ERROR(control_socket_.Listen(spec_.run_dir));
    return lead_.Open(spec_.run_dir);
  }

  void Fail(const absl::Status& status) {
    failure_ = status;
    poller_.Stop();
  }

  void Stop(int signal) {
    if (lead_.begun()) return lead_.head().Handle(control::StopAsked{signal});
    Fail(MakeError(absl::StatusCode::kCancelled, "stopped before the job began"));
  }

  Json Waiting() const { return {{"state", "waiting"}, {"job", spec_.job}, {"endpoint", options_.nodes.endpoint}}; }

  void Answer(const Json& request, const ControlSocket::Reply& reply) {
    incident::Fields fields(request, "request");
    const std::string op = fields.Text("op");
    if (op == "status") return reply(lead_.begun() ? lead_.head().Status() : Waiting());
    if (op == "incidents") return reply(lead_.begun() ? lead_.head().Incidents() : Json::array());
    if (op == "drill") return reply(Rehearse(request));
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
    view_.Line(fmt::format("drill: {}", drill->fault));
    lead_.head().Handle(control::EventBody(*drill));
    return {{"step", lead_.head().state().progress.step}, {"watcher_pid", getpid()}};
  }

  void Tick() {
    lead_.Tick();
    if (!lead_.begun()) {
      const Seconds patience = options_.nodes.join_timeout;
      if (clock_.Now() - begun_ < ToNanos(patience)) return;
      return Fail(MakeError(absl::StatusCode::kDeadlineExceeded,
                            fmt::format("not all nodes came within {} s: {}", patience.value, lead_.WhoIsHere())));
    }
    if (++ticks_ % kTicksPerPublish == 0) {
      if (view_.is_live()) view_.Paint(lead_.head().Status(), lead_.head().Incidents());
      lead_.head().Publish();
    }
    const control::State& state = lead_.head().state();
    if (state.mode != control::Mode::kFinished) return;
    if (ended_.value == 0) {
      ended_ = clock_.Now();
      view_.Settle();
      view_.Line(state.verdict);
    }
    if (lead_.IsWriting()) last_written_ = clock_.Now();
    // The agents leave when they have heard that it is over.
    if (lead_.HaveAllHeard() || clock_.Now() - std::max(ended_, last_written_) > ToNanos(kFarewell)) poller_.Stop();
  }

  const RunOptions options_;
  const agent::RunSpec spec_;
  SystemClock clock_;
  Poller poller_;
  View view_;
  Lead lead_;
  ControlSocket control_socket_;
  Signals signals_;
  absl::Status failure_;
  Nanos begun_, ended_, last_written_;
  int ticks_ = 0;
};

}  // namespace

absl::StatusOr<int> Coordinate(const RunOptions& options) {
  agent::RunSpec spec;
  spec.job = options.job.empty() ? "coordinator" : options.job;
  spec.ranks = 0;
  spec.allow_drill = options.allow_drill;
  spec.endpoint = options.nodes.endpoint;
  LS_ASSIGN_OR_RETURN(spec.run_token, MakeToken());
  LS_ASSIGN_OR_RETURN(spec.run_dir, MakeRunDir(options.run_dir, spec.job));
  LS_RETURN_IF_ERROR(KeepSpec(spec));
  BlockSignals(options.stop_signals);
  control::JobSpec job = MakeJob(options);
  job.name = spec.job;
  CoordinatorProcess process(options, std::move(spec));
  LS_RETURN_IF_ERROR(process.Begin(job));
  return process.Run();
}

absl::StatusOr<int> ResumeCoordinating(const std::string& run_dir, const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(const std::string found, FindRunDir(run_dir));
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, agent::ReadRunSpec(found));
  if (spec.ranks != 0) return InvalidArgument("{} is a run of `lockstep run`; resume it with that", found);
  RunOptions same = options;
  same.nodes.endpoint = spec.endpoint;
  BlockSignals(options.stop_signals);
  CoordinatorProcess process(same, std::move(spec));
  LS_RETURN_IF_ERROR(process.Resume());
  return process.Run();
}

}  // namespace lockstep::node
