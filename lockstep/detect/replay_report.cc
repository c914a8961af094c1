#include "lockstep/detect/replay_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/check.h"

namespace lockstep::detect {
namespace {

Json FailedGroups(const ReplayRound& round, const std::vector<GroupOutcome>& outcomes) {
  Json failed = Json::array();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const GroupOutcome& outcome = outcomes[i];
    if (outcome.failures == 0) continue;
    failed.push_back({{"machines", round.groups[i]},
                      {"runs", outcome.runs},
                      {"failures", outcome.failures},
                      {"evidence", outcome.evidence}});
  }
  return failed;
}

Json RoundsJson(const GroupTestResult& result) {
  Json rounds = Json::array();
  for (size_t i = 0; i < result.rounds.size(); ++i) {
    const ReplayRound& round = result.rounds[i];
    rounds.push_back({{"round", round.number},
                      {"groups", round.groups.size()},
                      {"runs_each", round.rule.runs},
                      {"failed", FailedGroups(round, result.outcomes[i])}});
  }
  return rounds;
}

std::string NamesOf(const Machines& machines, const std::vector<std::string>& names) {
  std::string text;
  for (const int machine : machines) text += (text.empty() ? "" : ", ") + names[static_cast<size_t>(machine)];
  return text;
}

std::vector<std::string> EvidenceLines(const GroupTestResult& result, const std::vector<std::string>& names) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < result.rounds.size(); ++i) {
    for (size_t group = 0; group < result.outcomes[i].size(); ++group) {
      const GroupOutcome& outcome = result.outcomes[i][group];
      if (outcome.failures == 0) continue;
      std::string line = fmt::format("replay round {}: nodes {} failed {} of {} runs", result.rounds[i].number,
                                     NamesOf(result.rounds[i].groups[group], names), outcome.failures, outcome.runs);
      if (!outcome.evidence.empty()) line += ": " + outcome.evidence.front();
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace

Json ReplayReport(const GroupTestResult& result) {
  const MachineVerdict& verdict = result.verdict;
  Json suspects = Json::array();
  for (const SuspectMachine& one : verdict.suspects)
    suspects.push_back({{"machine", one.machine}, {"chance", one.chance}});
  Json report = {{"healthy", !verdict.reproduced}};
  if (!result.note.empty()) report["note"] = result.note;
  report.update({{"bad", verdict.bad},
                 {"certain", verdict.certain},
                 {"confidence", verdict.confidence},
                 {"suspects", suspects},
                 {"links", verdict.apart},
                 {"evict", verdict.evict},
                 {"evict_confidence", verdict.evict_confidence},
                 {"grid",
                  {{"machines", result.grid.machines},
                   {"pipeline", result.grid.unit},
                   {"m", result.grid.m},
                   {"n", result.grid.n},
                   {"unique", result.grid.unique()}}},
                 {"rounds", RoundsJson(result)},
                 {"machine_minutes", MachineMinutes(result)}});
  return report;
}

std::optional<incident::Finding> ReplayFinding(const GroupTestResult& result, incident::Syndrome syndrome,
                                               const std::vector<std::string>& names) {
  const MachineVerdict& verdict = result.verdict;
  LS_CHECK(names.size() == static_cast<size_t>(result.grid.machines), "{} names", names.size());
  if (!verdict.reproduced) return std::nullopt;
  const auto node = [&](int machine) {
    return incident::Suspect{incident::Suspect::Kind::kNode, names[static_cast<size_t>(machine)]};
  };
  incident::Finding finding;
  finding.syndrome = syndrome;
  finding.certain = verdict.certain;
  finding.evidence = EvidenceLines(result, names);
  for (const int machine : verdict.bad) finding.suspects.push_back(node(machine));
  Machines others;
  for (const SuspectMachine& one : verdict.suspects) others.push_back(one.machine);
  if (verdict.certain) others.clear();
  for (const Machines& group : verdict.apart) others.insert(others.end(), group.begin(), group.end());
  for (const int machine : others) {
    const bool named = std::find(verdict.bad.begin(), verdict.bad.end(), machine) != verdict.bad.end();
    if (!named) finding.ambiguous_with.push_back(node(machine));
  }
  if (!verdict.apart.empty()) {
    finding.probe = "which two of the machines fail together: replay halves of their group";
  } else if (verdict.bad.size() == names.size()) {
    finding.probe = "whether what they replay fails of itself: run it on a machine that took no part";
  } else if (!verdict.certain) {
    finding.probe = "a further replay round, of each suspect among machines that are well";
  }
  return finding;
}

}  // namespace lockstep::detect
