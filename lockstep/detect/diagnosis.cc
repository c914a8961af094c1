#include "lockstep/detect/diagnosis.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/wall_time.h"

namespace lockstep::detect {
namespace {

Json SuspectsJson(const std::vector<incident::Suspect>& suspects) {
  constexpr const char* kKeys[] = {"rank", "node", "port", "link", "software", "block"};
  Json list = Json::array();
  for (const incident::Suspect& suspect : suspects) {
    const std::optional<RankId> rank = incident::RankOf(suspect);
    list.push_back({{kKeys[static_cast<size_t>(suspect.kind)], rank ? Json(rank->value()) : Json(suspect.name)}});
  }
  return list;
}

Json VerdictJson(const incident::Finding& finding) {
  return {{"syndrome", incident::SyndromeName(finding.syndrome)},
          {"headline", incident::Headline(finding)},
          {"certain", finding.certain},
          {"suspects", SuspectsJson(finding.suspects)},
          {"ambiguous_with", SuspectsJson(finding.ambiguous_with)},
          {"probe", finding.probe.empty() ? Json() : Json(finding.probe)},
          {"evidence", finding.evidence},
          {"since", finding.since.value == 0 ? Json() : Json(IsoTime(finding.since))},
          {"price", incident::ToJson(finding.price)}};
}

}  // namespace

Json DiagnosisReport(const CommDiagnosis& diagnosis, const trace::CommLog& log) {
  // Where nothing was found, what can't be seen is not known to be well.
  std::string blind_spot = log.blind_spot;
  if (!diagnosis.too_short.empty()) blind_spot += (blind_spot.empty() ? "" : "; ") + diagnosis.too_short;
  const bool sees_all = blind_spot.empty() && log.damaged.empty() && diagnosis.no_report.empty();
  const bool unknown = diagnosis.findings.empty() && !sees_all;
  Json report = {{"healthy", unknown ? Json() : Json(diagnosis.findings.empty())},
                 {"verdicts", Json::array()},
                 {"no_report", diagnosis.no_report},
                 {"reported", log.reported.size()},
                 {"damaged", log.damaged},
                 {"blind_spot", blind_spot.empty() ? Json() : Json(blind_spot)},
                 {"counters", Json::object()}};
  for (const incident::Finding& finding : diagnosis.findings) report["verdicts"].push_back(VerdictJson(finding));
  for (const trace::Counter& counter : log.counters) report["counters"][counter.name] = counter.count;
  return report;
}

Json DiagnosisReport(CommDiagnosis diagnosis, trace::CommLog log, const StackVerdict& stacks, Reader reader) {
  if (log.reported.empty()) {
    diagnosis.no_report = stacks.no_stack;
    for (const Trainer& trainer : stacks.stacks.trainers)
      if (trainer.cluster != Trainer::kUnread) log.reported.push_back(trainer.rank);
    log.blind_spot =
        "stacks of one moment tell who waits, not for how long: a rank that is slow looks like one that hangs";
  }
  if (stacks.finding) diagnosis.findings.insert(diagnosis.findings.begin(), *stacks.finding);
  Json report = DiagnosisReport(diagnosis, log);
  report["stacks"] = StackReport(stacks, reader);
  return report;
}

}  // namespace lockstep::detect
