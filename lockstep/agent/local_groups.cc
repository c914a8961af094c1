#include "lockstep/agent/local_groups.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/agent/workers.h"

namespace lockstep::agent {
namespace {

constexpr long kLookEveryNs = 5'000'000;
constexpr size_t kMostEvidence = 4;

std::string LastLine(const std::string& path) {
  std::string text = ReadFile(path).value_or("");
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  const size_t newline = text.rfind('\n');
  return text.substr(newline == std::string::npos ? 0 : newline + 1).substr(0, 200);
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was killed by {} (signal {})", strsignal(WTERMSIG(status)), WTERMSIG(status));
  return fmt::format("left with exit status {}", WEXITSTATUS(status));
}

bool Running(pid_t pid) { return pid != 0; }

}  // namespace

LocalGroups::LocalGroups(LocalReplay replay) : replay_(std::move(replay)), host_(replay_.program) {}

std::string LocalGroups::RankName(const Run& run, int rank) const {
  const int machine = run.machines[static_cast<size_t>(rank / replay_.ranks_per_machine)];
  return fmt::format("machine {} (rank {} of its group)", machine, rank);
}

std::string LocalGroups::FileOf(const Run& run, int rank, const char* suffix) const {
  return fmt::format("{}/run{}_group{}_rank{}.{}", replay_.folder, runs_, run.group, rank, suffix);
}

RankStart LocalGroups::StartOf(const Run& run, int rank, int port) const {
  const int local = rank % replay_.ranks_per_machine, place = rank / replay_.ranks_per_machine;
  const std::string ranks = std::to_string(Ranks(run));
  const Json plan = {{"layers", replay_.layers},
                     {"steps", replay_.steps},
                     {"run", runs_},
                     {"machine", run.machines[static_cast<size_t>(place)]},
                     {"machines", run.machines},
                     {"report", FileOf(run, rank, "jsonl")},
                     {"runner", getpid()}};
  Environment environment = {{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", ranks},
                             {"ROLE_RANK", std::to_string(rank)},
                             {"ROLE_WORLD_SIZE", ranks},
                             {"ROLE_NAME", "default"},
                             {"LOCAL_RANK", std::to_string(local)},
                             {"LOCAL_WORLD_SIZE", std::to_string(replay_.ranks_per_machine)},
                             {"GROUP_RANK", std::to_string(place)},
                             {"GROUP_WORLD_SIZE", std::to_string(run.machines.size())},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", std::to_string(port)},
                             {"TORCHELASTIC_RUN_ID", "replay"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"TORCHELASTIC_MAX_RESTARTS", "0"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                             {"USE_LIBUV", "0"},
                             {"LOCKSTEP_REPLAY", plan.dump()}};
  return {std::move(environment), FileOf(run, rank, "log")};
}

absl::Status LocalGroups::Begin(std::vector<Run*>& wave) {
  std::vector<RankStart> starts;
  std::set<int> ports;
  for (const Run* run : wave) {
    LS_ASSIGN_OR_RETURN(int port, FreePort(0));
    while (!ports.insert(port).second) {
      LS_ASSIGN_OR_RETURN(port, FreePort(0));
    }
    for (int rank = 0; rank < Ranks(*run); ++rank) starts.push_back(StartOf(*run, rank, port));
  }
  LS_ASSIGN_OR_RETURN(const std::vector<pid_t> pids, host_.Start(starts));
  auto next = pids.begin();
  for (Run* run : wave) {
    run->pids.assign(next, next + Ranks(*run));
    run->began = clock_.Now();
    next += Ranks(*run);
  }
  return absl::OkStatus();
}

// Kills who still runs. The first trouble is the cause; what follows from it is not evidence.
void LocalGroups::End(Run& run, const std::string& trouble) {
  if (run.trouble.empty()) run.trouble = trouble;
  for (const pid_t pid : run.pids) {
    if (Running(pid)) KillTree(pid);
  }
}

void LocalGroups::Ended(Run& run, int rank, int status) {
  run.pids[static_cast<size_t>(rank)] = 0;
  if (std::none_of(run.pids.begin(), run.pids.end(), Running)) run.ended = clock_.Now();
  if (status == 0 || !run.trouble.empty()) return;
  std::string trouble = fmt::format("{} {}", RankName(run, rank), HowItEnded(status));
  if (const std::string last = LastLine(FileOf(run, rank, "log")); !last.empty()) trouble += ": " + last;
  End(run, trouble);
}

void LocalGroups::Reap(std::vector<Run*>& wave) {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (Run* run : wave) {
      const auto found = std::find(run->pids.begin(), run->pids.end(), pid);
      if (found != run->pids.end()) Ended(*run, static_cast<int>(found - run->pids.begin()), status);
    }
  }
}

void LocalGroups::KillLate(std::vector<Run*>& wave) {
  for (Run* run : wave) {
    if (run->ended.value != 0 || !run->trouble.empty()) continue;
    if (clock_.Now() - run->began < ToNanos(replay_.deadline)) continue;
    std::string who;
    for (size_t rank = 0; rank < run->pids.size(); ++rank) {
      if (Running(run->pids[rank])) who += (who.empty() ? "" : ", ") + RankName(*run, static_cast<int>(rank));
    }
    End(*run, fmt::format("not done after {} s: {}", replay_.deadline.value, who));
  }
}

absl::Status LocalGroups::Await(std::vector<Run*>& wave) {
  const auto done = [](const Run* run) { return run->ended.value != 0; };
  while (!std::all_of(wave.begin(), wave.end(), done)) {
    Reap(wave);
    KillLate(wave);
    if (replay_.interrupted && replay_.interrupted()) {
      host_.KillAll();
      return MakeError(absl::StatusCode::kCancelled, "the replay was interrupted");
    }
    const timespec pause{0, kLookEveryNs};
    nanosleep(&pause, nullptr);
  }
  host_.KillAll();
  return absl::OkStatus();
}

absl::Status LocalGroups::ReadReports(Run& run) {
  for (int rank = 0; rank < Ranks(run); ++rank) {
    const absl::StatusOr<std::string> text = ReadFile(FileOf(run, rank, "jsonl"));
    if (!text.ok()) continue;  // a script that reports nothing
    LS_ASSIGN_OR_RETURN(const auto values, detect::ParseReplayReport(*text, rank, Ranks(run)));
    run.values.insert(run.values.end(), values.begin(), values.end());
  }
  return absl::OkStatus();
}

// All groups of `runs` once, in waves.
absl::Status LocalGroups::RunOnce(std::vector<Run>& runs) {
  ++runs_;
  for (size_t next = 0; next < runs.size();) {
    std::vector<Run*> wave;
    int ranks = 0;
    while (next < runs.size() && (wave.empty() || ranks + Ranks(runs[next]) <= replay_.ranks_at_once)) {
      ranks += Ranks(runs[next]);
      wave.push_back(&runs[next++]);
    }
    LS_RETURN_IF_ERROR(Begin(wave));
    LS_RETURN_IF_ERROR(Await(wave));
  }
  for (Run& run : runs) LS_RETURN_IF_ERROR(ReadReports(run));
  return absl::OkStatus();
}

std::vector<std::string> LocalGroups::Evidence(const Run& run, const std::vector<detect::Objection>& objections) const {
  std::vector<std::string> lines;
  if (!run.trouble.empty()) lines.push_back(run.trouble);
  for (const detect::Objection& one : objections) {
    if (lines.size() < kMostEvidence) lines.push_back(fmt::format("{}: {}", RankName(run, one.rank), one.text));
  }
  return lines;
}

namespace {

// The same for every machine: what is left of a line when the name of the machine is gone.
std::string Reason(const std::string& evidence) {
  const size_t name = evidence.find(") ");
  return name == std::string::npos ? evidence : evidence.substr(name + 2);
}

// A machine that is bad fails its own group; what fails all of them in one way is what they have in common.
absl::Status RefuseCommonTrouble(const std::vector<std::string>& troubles) {
  const auto alike = [&](const std::string& one) {
    return one.find("left with") != std::string::npos && Reason(one) == Reason(troubles.front());
  };
  if (!std::all_of(troubles.begin(), troubles.end(), alike)) return absl::OkStatus();
  return FailedPrecondition("all {} groups fail alike, so it is the script and no machine: {}", troubles.size(),
                            troubles.front());
}

}  // namespace

// A run of each group that is not known to be faulty.
std::vector<LocalGroups::Run> LocalGroups::RunsOf(const detect::ReplayRound& round,
                                                  const std::vector<detect::GroupOutcome>& outcomes) {
  std::vector<Run> runs;
  for (size_t group = 0; group < outcomes.size(); ++group) {
    if (outcomes[group].failures >= round.rule.failures) continue;
    Run& run = runs.emplace_back();
    run.group = group;
    run.machines = round.groups[group];
  }
  return runs;
}

void LocalGroups::Count(const Run& run, const std::vector<std::string>& evidence, detect::GroupOutcome& outcome) {
  ++outcome.runs;
  outcome.failures += !evidence.empty();
  outcome.took += ToSeconds(run.ended - run.began);
  outcome.evidence.insert(outcome.evidence.end(), evidence.begin(), evidence.end());
}

absl::StatusOr<std::vector<detect::GroupOutcome>> LocalGroups::RunRound(const detect::ReplayRound& round) {
  std::vector<detect::GroupOutcome> outcomes(round.groups.size());
  for (int repeat = 1; repeat <= round.rule.runs; ++repeat) {
    std::vector<Run> runs = RunsOf(round, outcomes);
    if (runs.empty()) break;
    if (replay_.note) {
      replay_.note(
          fmt::format("round {}, run {} of {} at most: {} groups", round.number, repeat, round.rule.runs, runs.size()));
    }
    LS_RETURN_IF_ERROR(RunOnce(runs));
    std::vector<std::string> troubles;
    for (const Run& run : runs) troubles.push_back(run.trouble);
    if (round.number == 1 && runs.size() == outcomes.size()) LS_RETURN_IF_ERROR(RefuseCommonTrouble(troubles));
    std::vector<std::vector<detect::ReplayValue>> values;
    for (const Run& run : runs) values.push_back(run.values);
    const auto objections = votes_.Judge(values);
    for (size_t i = 0; i < runs.size(); ++i) Count(runs[i], Evidence(runs[i], objections[i]), outcomes[runs[i].group]);
  }
  return outcomes;
}

}  // namespace lockstep::agent
