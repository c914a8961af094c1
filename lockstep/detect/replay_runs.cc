#include "lockstep/detect/replay_runs.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::detect {
namespace {

constexpr size_t kMostEvidence = 4;

// The same for every machine: what is left of a line when the name of the machine is gone.
std::string Reason(const std::string& evidence) {
  const size_t name = evidence.find(") ");
  return name == std::string::npos ? evidence : evidence.substr(name + 2);
}

// A machine that is bad fails its own group; what fails all of them in one way is what they have in common.
absl::Status RefuseCommonTrouble(const std::vector<GroupRun>& runs) {
  const std::string& first = runs.front().trouble;
  const auto alike = [&](const GroupRun& run) {
    return run.trouble.find("left with") != std::string::npos && Reason(run.trouble) == Reason(first);
  };
  if (!std::all_of(runs.begin(), runs.end(), alike)) return absl::OkStatus();
  return FailedPrecondition("all {} groups fail alike, so it is the script and no machine: {}", runs.size(), first);
}

}  // namespace

std::string ReplayedRankName(const std::string& machine, int rank) {
  return fmt::format("{} (rank {} of its group)", machine, rank);
}

RoundOfRuns::RoundOfRuns(ReplayRound round, ReplayVotes& votes, RankNamer name)
    : round_(std::move(round)), votes_(votes), name_(std::move(name)), outcomes_(round_.groups.size()) {}

// Those that are not known to be faulty.
std::vector<size_t> RoundOfRuns::Due() const {
  std::vector<size_t> due;
  for (size_t group = 0; group < outcomes_.size() && repeats_ < round_.rule.runs; ++group)
    if (outcomes_[group].failures < round_.rule.failures) due.push_back(group);
  return due;
}

std::vector<std::string> RoundOfRuns::Evidence(const GroupRun& run, const std::vector<Objection>& objections) const {
  std::vector<std::string> lines;
  if (!run.trouble.empty()) lines.push_back(run.trouble);
  for (const Objection& one : objections)
    if (lines.size() < kMostEvidence) lines.push_back(fmt::format("{}: {}", name_(run.group, one.rank), one.text));
  return lines;
}

absl::Status RoundOfRuns::Take(const std::vector<GroupRun>& runs) {
  LS_CHECK(runs.size() == Due().size(), "{} runs of {}", runs.size(), Due().size());
  ++repeats_;
  if (round_.number == 1 && runs.size() == outcomes_.size()) LS_RETURN_IF_ERROR(RefuseCommonTrouble(runs));
  std::vector<std::vector<ReplayValue>> values;
  for (const GroupRun& run : runs) values.push_back(run.values);
  const auto objections = votes_.Judge(values);
  for (size_t i = 0; i < runs.size(); ++i) {
    GroupOutcome& outcome = outcomes_[runs[i].group];
    const std::vector<std::string> evidence = Evidence(runs[i], objections[i]);
    ++outcome.runs;
    outcome.failures += !evidence.empty();
    outcome.took += runs[i].took;
    outcome.evidence.insert(outcome.evidence.end(), evidence.begin(), evidence.end());
  }
  return absl::OkStatus();
}

}  // namespace lockstep::detect
