#include "lockstep/agent/local_groups.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep::agent {
namespace {

constexpr long kLookEveryNs = 5'000'000;

}  // namespace

LocalGroups::LocalGroups(LocalReplay replay) : replay_(std::move(replay)), host_(replay_.program) {}

std::string LocalGroups::NameOf(const detect::Machines& machines, int rank) const {
  const int machine = machines[static_cast<size_t>(rank / replay_.ranks_per_machine)];
  return detect::ReplayedRankName(fmt::format("machine {}", machine), rank);
}

std::string LocalGroups::FileOf(size_t group, int rank, const char* suffix) const {
  return fmt::format("{}/run{}_group{}_rank{}.{}", replay_.folder, runs_, group, rank, suffix);
}

LocalGroups::Run LocalGroups::RunOf(const detect::ReplayRound& round, size_t group) const {
  const detect::Machines& machines = round.groups[group];
  std::vector<ReplayedRanks::Rank> ranks;
  for (int rank = 0; rank < static_cast<int>(machines.size()) * replay_.ranks_per_machine; ++rank)
    ranks.push_back({NameOf(machines, rank), FileOf(group, rank, "log")});
  return {group, machines, ReplayedRanks(std::move(ranks))};
}

RankStart LocalGroups::StartOf(const Run& run, int rank, int port) const {
  ReplayPlace place;
  place.rank = rank;
  place.ranks = static_cast<int>(run.ranks.count());
  place.local_rank = rank % replay_.ranks_per_machine;
  place.local_ranks = replay_.ranks_per_machine;
  place.index = rank / replay_.ranks_per_machine;
  place.machines = static_cast<int>(run.machines.size());
  place.master_port = port;
  const Json plan = {{"layers", replay_.layers},
                     {"steps", replay_.steps},
                     {"run", runs_},
                     {"machine", run.machines[static_cast<size_t>(place.index)]},
                     {"machines", run.machines},
                     {"report", FileOf(run.group, rank, "jsonl")},
                     {"runner", getpid()}};
  return {ReplayEnvironment(place, plan), FileOf(run.group, rank, "log")};
}

absl::Status LocalGroups::Begin(std::span<Run> wave) {
  std::vector<RankStart> starts;
  std::set<int> ports;
  for (const Run& run : wave) {
    LS_ASSIGN_OR_RETURN(int port, FreePort(0));
    while (!ports.insert(port).second) {
      LS_ASSIGN_OR_RETURN(port, FreePort(0));
    }
    for (int rank = 0; rank < static_cast<int>(run.ranks.count()); ++rank) starts.push_back(StartOf(run, rank, port));
  }
  LS_ASSIGN_OR_RETURN(const std::vector<pid_t> pids, host_.Start(starts));
  auto next = pids.begin();
  for (Run& run : wave) {
    const auto end = next + static_cast<std::ptrdiff_t>(run.ranks.count());
    run.ranks.Began({next, end}, clock_.Now());
    next = end;
  }
  return absl::OkStatus();
}

void LocalGroups::Reap(std::span<Run> wave) {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
    for (Run& run : wave) run.ranks.Ended(pid, status, clock_.Now());
}

absl::Status LocalGroups::Await(std::span<Run> wave) {
  while (!std::all_of(wave.begin(), wave.end(), [](const Run& run) { return run.ranks.over(); })) {
    Reap(wave);
    for (Run& run : wave) run.ranks.EndLate(replay_.deadline, clock_.Now());
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

absl::StatusOr<detect::GroupRun> LocalGroups::Outcome(const Run& run) {
  detect::GroupRun outcome{run.group, run.ranks.trouble(), {}, run.ranks.took()};
  const int ranks = static_cast<int>(run.ranks.count());
  for (int rank = 0; rank < ranks; ++rank) {
    const absl::StatusOr<std::string> text = ReadFile(FileOf(run.group, rank, "jsonl"));
    if (!text.ok()) continue;  // a script that reports nothing
    any_calls_replay_ = true;  // which opens the file
    LS_ASSIGN_OR_RETURN(const auto values, detect::ParseReplayReport(*text, rank, ranks));
    any_values_ = any_values_ || !values.empty();
    outcome.values.insert(outcome.values.end(), values.begin(), values.end());
  }
  return outcome;
}

// All that are due once, in waves.
absl::StatusOr<std::vector<detect::GroupRun>> LocalGroups::RunOnce(const detect::ReplayRound& round,
                                                                   const std::vector<size_t>& due) {
  ++runs_;
  std::vector<Run> runs;
  for (const size_t group : due) runs.push_back(RunOf(round, group));
  for (size_t next = 0; next < runs.size();) {
    const size_t first = next;
    size_t ranks = 0;
    do {
      ranks += runs[next++].ranks.count();
    } while (next < runs.size() && ranks + runs[next].ranks.count() <= static_cast<size_t>(replay_.ranks_at_once));
    const std::span<Run> wave(&runs[first], next - first);
    LS_RETURN_IF_ERROR(Begin(wave));
    LS_RETURN_IF_ERROR(Await(wave));
  }
  std::vector<detect::GroupRun> outcomes;
  for (const Run& run : runs) {
    LS_ASSIGN_OR_RETURN(outcomes.emplace_back(), Outcome(run));
  }
  return outcomes;
}

std::string LocalGroups::note() const {
  if (any_values_) return "";
  return fmt::format("values were not compared, for the script never calls {}: only exits and deadlines were",
                     any_calls_replay_ ? "check() of what lockstep.replay() gives" : "lockstep.replay()");
}

absl::StatusOr<std::vector<detect::GroupOutcome>> LocalGroups::RunRound(const detect::ReplayRound& round) {
  detect::RoundOfRuns runs(round, votes_, [&](size_t group, int rank) { return NameOf(round.groups[group], rank); });
  for (std::vector<size_t> due; !(due = runs.Due()).empty();) {
    if (replay_.note) {
      replay_.note(fmt::format("round {}, run {} of {} at most: {} groups", round.number, runs.repeats() + 1,
                               round.rule.runs, due.size()));
    }
    LS_ASSIGN_OR_RETURN(const std::vector<detect::GroupRun> ended, RunOnce(round, due));
    LS_RETURN_IF_ERROR(runs.Take(ended));
  }
  return runs.outcomes();
}

}  // namespace lockstep::agent
