#include "lockstep/drill/drill.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/wall_time.h"

namespace lockstep::drill {
namespace {

constexpr Seconds kTick{0.005};
constexpr Seconds kLookPeriod{0.1};
constexpr Seconds kPatience{90};  // for a job that starts, or starts again; one that tells no steps runs after 60 s

Fd BlockedSignals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, signal);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
}

pid_t PidOf(const Json& status, int rank) {
  for (const Json& one : status.value("ranks", Json::array())) {
    if (one.value("rank", -1) == rank) return one.value("pid", 0);
  }
  return 0;
}

Json RankJson(const Fault& fault) { return StrikesRank(fault.kind) ? Json(fault.rank.value()) : Json(); }

// A node is named by its first rank.
int RankOf(const Fault& fault, const agent::RunSpec& spec) {
  if (fault.kind == Kind::kKillStarter) return spec.place.first_rank;
  return StrikesRank(fault.kind) ? *fault.rank : -1;
}

Json Announcement(const Fault& fault, const agent::RunSpec& spec, uint64_t epoch) {
  return {{"fault", KindName(fault.kind)}, {"rank", RankOf(fault, spec)}, {"epoch", epoch}};
}

std::string LineOf(const Injected& one) {
  const std::string pid = one.pid > 0 ? fmt::format(" (pid {})", one.pid) : "";
  return fmt::format("{}  {}{} at step {}", IsoTime(one.wall), Text(one.fault), pid, one.step);
}

}  // namespace

Json ToJson(const Report& report) {
  Json faults = Json::array();
  for (const Injected& one : report.faults) {
    faults.push_back({{"at_s", ToSeconds(one.at - report.began).value},
                      {"at", IsoTime(one.wall)},
                      {"step", one.step},
                      {"fault", KindName(one.fault.kind)},
                      {"rank", RankJson(one.fault)},
                      {"pid", one.pid > 0 ? Json(one.pid) : Json()}});
  }
  return {{"seed", report.seed}, {"faults", std::move(faults)}, {"failed", report.failed}};
}

Drill::Drill(agent::RunSpec spec, Plan plan, Rim rim, const Clock& clock)
    : spec_(std::move(spec)), rim_(std::move(rim)), clock_(clock), waiting_(std::move(plan.faults)) {
  report_.seed = plan.seed.value();
}

Report Drill::Run() {
  const Fd signals = BlockedSignals();
  report_.began = ready_ = clock_.Now();
  poller_.Watch(signals.get(), [this] {
    GiveUp("interrupted");
    KeepHolds(Nanos{INT64_MAX});
    poller_.Stop();
  });
  poller_.Run(kTick, [this] { Tick(); });
  return std::move(report_);
}

void Drill::Tick() {
  const Nanos now = clock_.Now();
  KeepHolds(now);
  if (!waiting_.empty() && now - looked_ >= ToNanos(kLookPeriod)) {
    looked_ = now;
    Look();
  }
  if (waiting_.empty() && in_force_.empty()) poller_.Stop();
}

void Drill::KeepHolds(Nanos now) {
  std::erase_if(in_force_, [&](const InForce& one) {
    if (one.hold->GoesOn(now)) return false;
    if (const std::string failure = one.hold->Failure(); !failure.empty())
      report_.failed.push_back(fmt::format("{}: {}", Text(one.fault), failure));
    if (!one.hold->Struck()) Withdraw(one.fault, one.epoch);
    return true;
  });
}

void Drill::Look() {
  const absl::StatusOr<Json> status = rim_.status();
  if (!status.ok()) return GiveUp(Message(status.status()));
  const std::string state = status->value("state", "");
  if (state == "finished" || state == "finishing") return GiveUp("the job has ended");
  if (state == "running") {
    ready_ = clock_.Now();
    return LookAt(*status);
  }
  if (clock_.Now() - ready_ >= ToNanos(kPatience))
    GiveUp(fmt::format("the job did not run for {} s; its state is {}", kPatience.value, state));
}

// One fault at a look: what it does to the job shows in the next status.
void Drill::LookAt(const Json& status) {
  const auto due =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Planned& planned) { return IsDue(planned, status); });
  if (due == waiting_.end()) return;
  const Fault fault = due->fault;
  waiting_.erase(due);
  Strike(fault, status);
}

bool Drill::IsDue(const Planned& planned, const Json& status) const {
  if (planned.at_step) return status.value("step", int64_t{-1}) >= *planned.at_step;
  return clock_.Now() - report_.began >= ToNanos(planned.after);
}

void Drill::Strike(const Fault& fault, const Json& status) {
  const absl::Status done = TryToStrike(fault, status);
  if (!done.ok()) report_.failed.push_back(fmt::format("{}: {}", Text(fault), Message(done)));
}

// Written down before it strikes: a watcher that hears of the fault knows already that it was rehearsed.
absl::Status Drill::TryToStrike(const Fault& fault, const Json& status) {
  Target target;
  target.epoch = status.value("epoch", uint64_t{0});
  target.worker = PidOf(status, fault.rank.value_or(spec_.place.first_rank));
  if (target.worker <= 0 && fault.kind != Kind::kKillCoordinator) return NotFound("no such worker runs now");
  if (StrikesRank(fault.kind) || fault.kind == Kind::kKillStarter)
    LS_RETURN_IF_ERROR(StarterOf(target.worker).status());  // it may have ended, and its number be another's
  LS_ASSIGN_OR_RETURN(const Json announced, rim_.announce(Announcement(fault, spec_, target.epoch)));
  target.watcher = announced.value("watcher_pid", 0);
  const absl::Status done = Break(fault, target, announced);
  if (!done.ok()) Withdraw(fault, target.epoch);
  return done;
}

absl::Status Drill::Break(const Fault& fault, const Target& target, const Json& announced) {
  LS_ASSIGN_OR_RETURN(const pid_t victim, VictimOf(fault, target));
  const Injected one{fault, clock_.Now(), clock_.WallNow(), announced.value("step", int64_t{-1}), victim};
  LS_ASSIGN_OR_RETURN(HoldPtr hold, Inject(fault, spec_, target, one.at));
  report_.faults.push_back(one);
  rim_.say(LineOf(one));
  if (hold) in_force_.push_back({fault, target.epoch, std::move(hold)});
  return absl::OkStatus();
}

// Else the next real fault of that rank would count as rehearsed.
void Drill::Withdraw(const Fault& fault, uint64_t epoch) {
  Json what = Announcement(fault, spec_, epoch);
  what["withdrawn"] = true;
  const absl::StatusOr<Json> written = rim_.announce(what);
  if (!written.ok())
    report_.failed.push_back(
        fmt::format("{}: that it was not done could not be written down: {}", Text(fault), Message(written.status())));
}

void Drill::GiveUp(const std::string& why) {
  for (const Planned& planned : waiting_) report_.failed.push_back(fmt::format("{}: {}", Text(planned.fault), why));
  waiting_.clear();
}

}  // namespace lockstep::drill
