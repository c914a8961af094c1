#include "lockstep/schedule/slurm_driver.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/base/background_thread.h"
#include "lockstep/base/steady.h"
#include "lockstep/schedule/command.h"

namespace lockstep::schedule {
namespace {

using Steady = std::chrono::steady_clock;
constexpr Seconds kLongestPause{600}, kFarewell{5}, kRequeueWithin{10}, kLookForPending{0.2};

bool Contains(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

bool IsOnPath(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

// Of the job that we run in Slurm tells its own by variables: the new one is to have its own. What configures Slurm's
// commands stays.
std::vector<std::string> EnvironmentOfANewJob() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool of_the_job = text.starts_with("SLURM_") && !text.starts_with("SLURM_CONF=");
    if (!of_the_job && !text.starts_with("SLURMD_")) environment.emplace_back(text);
  }
  return environment;
}

class SlurmDriver final : public Driver {
 public:
  explicit SlurmDriver(SlurmOptions options) : options_(std::move(options)), pause_(options_.ask_again) {
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }

  void Want(const Wanted& wanted) override {
    const std::lock_guard lock(mutex_);
    if (wanted == wanted_) return;
    wanted_ = wanted;
    changed_ = true;
    wake_.notify_all();
  }

  std::vector<Outcome> TakeOutcomes() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(outcomes_, {});
  }

  Counts counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  void End() override {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    if (!has_looked_ || !may_be_on_their_way_) return;  // a short run does not wait for Slurm at its end
    const auto requests = Look(kFarewell, {});
    if (!requests.ok()) return;
    for (const Request& request : *requests)
      if (!request.HasBegun()) static_cast<void>(RunCommand(Cancel(request.job), {.at_most = kFarewell}));
  }

  absl::Status Requeue() override {
    if (options_.job.empty()) return FailedPrecondition("the coordinator runs in no job of Slurm's");
    LS_ASSIGN_OR_RETURN(const std::string text, RunCommand(ShowJob(options_.job), {.at_most = kFarewell}));
    LS_ASSIGN_OR_RETURN(const JobShape shape, ParseJob(text));
    if (!shape.requeues)
      return FailedPrecondition("job {} is no batch job that may begin anew (sbatch --requeue)", options_.job);
    // From then on Slurm may end us, and all that we have started: hence the shield.
    if (Words helper = options_.begin_now; !helper.empty()) {
      helper.push_back(options_.job);
      LS_RETURN_IF_ERROR(Detach(helper));
    }
    return RunCommand(RequeueJob(options_.job), {.at_most = kRequeueWithin, .takes_signals = false}).status();
  }

 private:
  void Run(const std::stop_token& stop) {
    TakeNoSignals();
    while (!stop.stop_requested()) {
      const Wanted wanted = Next(stop);
      if (!stop.stop_requested()) Work(wanted, stop);
    }
  }

  // Waits until something else is wanted, or what was asked for is to be looked at again.
  Wanted Next(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto changed = [this] { return changed_; };
    if (may_be_on_their_way_ || unfinished_) {
      wake_.wait_for(lock, stop, SteadyDuration(options_.look_again), changed);
    } else {
      wake_.wait(lock, stop, changed);
    }
    changed_ = false;
    return wanted_;
  }

  void Work(const Wanted& wanted, const std::stop_token& stop) {
    for (const Drain& drain : wanted.drains) DrainOnce(drain, stop);
    unfinished_ = wanted.machines > 0;
    if (wanted.machines == 0) {
      asked_ = 0;
      pause_ = options_.ask_again;
      ask_not_before_ = {};
    }
    if (wanted.machines == 0 && !may_be_on_their_way_) return;
    const auto requests = Look(options_.at_most, stop);
    if (!requests.ok()) return Complain(wanted.incident, "Slurm does not say what is on its way", requests.status());
    std::vector<Request> coming;
    for (const Request& request : *requests)
      if (IsComing(request, wanted)) coming.push_back(request);
    const int missing = wanted.machines - static_cast<int>(coming.size());
    if (missing < 0) CancelSome(wanted, coming, -missing, stop);
    if (missing > 0 && MayAsk(wanted)) AskFor(missing, wanted, stop);
  }

  bool IsComing(const Request& request, const Wanted& wanted) const {
    const bool came = Contains(wanted.here, request.host) || Contains(wanted.banned, request.host);
    return !came && (!request.HasBegun() || request.ran < options_.comes_within);
  }

  absl::StatusOr<std::vector<Request>> Look(Seconds at_most, const std::stop_token& stop) {
    has_looked_ = true;
    LS_ASSIGN_OR_RETURN(const std::string text,
                        RunCommand(ShowRequests(options_.request_name), {.at_most = at_most}, stop));
    LS_ASSIGN_OR_RETURN(std::vector<Request> requests, ParseQueue(text));
    may_be_on_their_way_ =
        std::any_of(requests.begin(), requests.end(), [](const Request& request) { return !request.HasBegun(); });
    return requests;
  }

  // The first ones at once; those that did not come, or were refused, again after a pause.
  bool MayAsk(const Wanted& wanted) const {
    return Steady::now() >= ask_not_before_ || (asked_ < wanted.machines && !was_refused_);
  }

  void AskFor(int count, const Wanted& wanted, const std::stop_token& stop) {
    ask_not_before_ = Steady::now() + SteadyDuration(pause_);
    pause_ = Seconds{std::min(2 * pause_.value, kLongestPause.value)};
    was_refused_ = false;
    absl::StatusOr<Words> submit = Compose(wanted, stop);
    for (int i = 0; i < count && !stop.stop_requested(); ++i) {
      may_be_on_their_way_ = true;  // Slurm may have it, whether it answers or not
      const absl::StatusOr<std::string> job = submit.ok() ? SubmitOnce(*submit, stop) : submit.status();
      was_refused_ = !job.ok();
      if (was_refused_) return Complain(wanted.incident, "Slurm gives no machine", job.status());
      ++asked_;
      Tell({wanted.incident, "", fmt::format("asked Slurm for a machine: job {}", *job)}, &Counts::asked);
    }
  }

  absl::StatusOr<Words> Compose(const Wanted& wanted, const std::stop_token& stop) {
    Submission submission{options_.request_name, {}, {}, options_.script, {options_.coordinator}};
    LS_ASSIGN_OR_RETURN(submission.not_on, KnownHosts(wanted, stop));
    if (!options_.script.empty()) return Submit(submission);
    if (options_.command.empty()) return FailedPrecondition("--standby-job does not say what brings one");
    if (!options_.job.empty()) {
      LS_ASSIGN_OR_RETURN(const std::string text,
                          RunCommand(ShowJob(options_.job), {.at_most = options_.at_most}, stop));
      LS_ASSIGN_OR_RETURN(const JobShape shape, ParseJob(text));
      if (!shape.gres_unclear.empty())
        return FailedPrecondition("job {}: {}: say what brings a machine of the same kind, with --standby-job FILE",
                                  options_.job, shape.gres_unclear);
      submission.shape = shape;
    }
    submission.script = "/dev/stdin";
    submission.arguments = options_.command;
    return Submit(submission);
  }

  // A name that Slurm does not know, and it would refuse everything.
  absl::StatusOr<std::vector<std::string>> KnownHosts(const Wanted& wanted, const std::stop_token& stop) {
    LS_ASSIGN_OR_RETURN(const std::string text, RunCommand(ShowHosts(), {.at_most = options_.at_most}, stop));
    const std::vector<std::string> lines = Lines(text);
    const std::set<std::string> known(lines.begin(), lines.end());
    std::set<std::string> hosts(wanted.here.begin(), wanted.here.end());
    hosts.insert(wanted.banned.begin(), wanted.banned.end());
    std::erase_if(hosts, [&](const std::string& host) { return !known.contains(host); });
    return std::vector<std::string>(hosts.begin(), hosts.end());
  }

  absl::StatusOr<std::string> SubmitOnce(const Words& words, const std::stop_token& stop) {
    ChildOptions options{.at_most = options_.at_most, .environment = EnvironmentOfANewJob()};
    if (options_.script.empty()) options.input = kStandbyScript;
    LS_ASSIGN_OR_RETURN(const std::string answer, RunCommand(words, options, stop));
    return ParseSubmitted(answer);
  }

  // One that runs is about to join, and ends by itself if it comes for nothing.
  void CancelSome(const Wanted& wanted, const std::vector<Request>& coming, int count, const std::stop_token& stop) {
    for (const Request& request : coming) {
      if (request.HasBegun() || count-- <= 0) continue;
      const absl::Status cancelled = RunCommand(Cancel(request.job), {.at_most = options_.at_most}, stop).status();
      const int64_t incident = wanted.incident != 0 ? wanted.incident : incident_;
      if (!cancelled.ok()) return Complain(incident, "Slurm keeps a request that is not needed any more", cancelled);
      Tell({incident, "", fmt::format("job {} of Slurm is not needed any more: cancelled", request.job)},
           &Counts::cancelled);
    }
  }

  // Whatever comes of it, it is said once, and then nobody wants it any more.
  void DrainOnce(const Drain& drain, const std::stop_token& stop) {
    if (!drained_.insert(drain.host + " " + drain.reason).second) return;
    const absl::Status drained =
        IsHostName(drain.host)
            ? RunCommand(DrainHost(drain.host, drain.reason), {.at_most = options_.at_most}, stop).status()
            : InvalidArgument("that is not the name of one host");
    if (absl::IsCancelled(drained)) return;
    if (drained.ok())
      return Tell({drain.incident, drain.host, fmt::format("Slurm drains node {}: no other job gets it", drain.host)},
                  &Counts::drained);
    Tell({drain.incident, drain.host, fmt::format("Slurm does not drain node {}: {}", drain.host, Message(drained))},
         &Counts::refused);
  }

  // Once, until something else is wrong.
  void Complain(int64_t incident, const std::string& what, const absl::Status& why) {
    if (absl::IsCancelled(why)) return;
    const std::string text = fmt::format("{}: {}", what, Message(why));
    if (text == std::exchange(trouble_, text)) {
      const std::lock_guard lock(mutex_);
      ++counts_.refused;
      return;
    }
    Tell({incident, "", text}, &Counts::refused);
  }

  void Tell(Outcome outcome, int64_t Counts::* count) {
    if (count != &Counts::refused) trouble_.clear();
    if (outcome.incident != 0) incident_ = outcome.incident;
    const std::lock_guard lock(mutex_);
    outcomes_.push_back(std::move(outcome));
    ++(counts_.*count);
  }

  const SlurmOptions options_;
  // Of the thread, and of End() after it.
  bool may_be_on_their_way_ = true;  // whoever led before us may have asked
  bool has_looked_ = false, unfinished_ = false, was_refused_ = false;
  int asked_ = 0;  // since something was wanted
  Seconds pause_;
  Steady::time_point ask_not_before_;
  int64_t incident_ = 0;           // of the newest outcome
  std::set<std::string> drained_;  // or tried to
  std::string trouble_;            // that was told last
  // Of both.
  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  Wanted wanted_;
  bool changed_ = false;
  std::vector<Outcome> outcomes_;
  Counts counts_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace

int BeginNowMain(const std::string& job, Seconds at_most) {
  const auto deadline = Steady::now() + SteadyDuration(at_most);
  while (Steady::now() < deadline) {
    const auto text = RunCommand(ShowJob(job), {.at_most = kFarewell});
    const absl::StatusOr<JobShape> shape = text.ok() ? ParseJob(*text) : text.status();
    if (shape.ok() && shape->pending) return RunCommand(BeginSoon(job), {.at_most = kFarewell}).ok() ? 0 : 1;
    std::this_thread::sleep_for(SteadyDuration(kLookForPending));
  }
  return 1;
}

absl::Status CheckSlurm() {
  for (const char* program : {"scontrol", "sbatch", "squeue", "scancel", "sinfo"})
    if (!IsOnPath(program))
      return NotFound("--cluster slurm: there is no {} on PATH; install Slurm's commands, or leave the option out",
                      program);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Driver>> StartSlurm(const SlurmOptions& options) {
  LS_RETURN_IF_ERROR(CheckSlurm());
  return std::make_unique<SlurmDriver>(options);
}

}  // namespace lockstep::schedule
