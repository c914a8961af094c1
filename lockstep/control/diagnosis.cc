#include "lockstep/control/diagnosis.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "lockstep/probe/peer_range.h"

namespace lockstep::control {
namespace {

using incident::Finding;
using incident::Suspect;

constexpr double kSure = 0.95;  // beyond what a spread that is assumed can give

std::vector<probe::NodeReport> Read(const std::vector<std::string>& texts) {
  std::map<std::string, probe::NodeReport> by_name;  // JudgePeers wants each once
  for (const std::string& text : texts) {
    absl::StatusOr<std::vector<probe::NodeReport>> reports = probe::ParseReports(text, "a node's tests");
    if (!reports.ok() || reports->empty()) continue;
    by_name.try_emplace(reports->front().node, std::move(reports->front()));
  }
  std::vector<probe::NodeReport> reports;
  for (auto& [name, report] : by_name) reports.push_back(std::move(report));
  return reports;
}

// Whoever was asked anew, or took a place meanwhile, tested only itself, and could not come where its neighbours
// waited. Who says nothing at all is named for that.
void ForgetWhoWasNotInTheRing(std::vector<probe::NodeReport>& reports) {
  std::set<std::string> addresses;
  for (const probe::NodeReport& report : reports) addresses.insert(report.address);
  for (probe::NodeReport& report : reports)
    std::erase_if(report.measurements, [&](const probe::Measurement& one) {
      return !one.ok && !one.with.empty() && !addresses.contains(one.with);
    });
}

Finding FindingOf(const probe::Finding& found, bool widespread) {
  Finding finding;
  finding.syndrome = incident::Syndrome::kMachineFault;
  finding.suspects = {{Suspect::Kind::kNode, found.suspects.front()}};
  for (size_t i = 1; i < found.suspects.size(); ++i)
    finding.ambiguous_with.push_back({Suspect::Kind::kNode, found.suspects[i]});
  finding.evidence = {fmt::format("{}: {} (confidence {:.2g})", found.test, found.evidence, found.confidence)};
  if (widespread) finding.evidence.push_back("more than half of the nodes find the same: it is no fault of one");
  finding.certain = !found.ambiguous() && !widespread && found.confidence >= kSure;
  return finding;
}

}  // namespace

std::vector<Finding> FindingsOfTests(const std::vector<std::string>& texts) {
  std::vector<probe::NodeReport> reports = Read(texts);
  ForgetWhoWasNotInTheRing(reports);
  const probe::Judgement judgement = probe::JudgePeers(reports);
  std::map<std::string, size_t> found_by;  // by test
  for (const probe::Finding& found : judgement.findings)
    if (!found.ambiguous()) ++found_by[found.test];
  std::vector<Finding> findings;
  for (const probe::Finding& found : judgement.findings)
    findings.push_back(FindingOf(found, reports.size() > 1 && 2 * found_by[found.test] > reports.size()));
  return findings;
}

}  // namespace lockstep::control
