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
  const bool unknown = diagnosis.findings.empty() && !log.blind_spot.empty();
  Json report = {{"healthy", unknown ? Json() : Json(diagnosis.findings.empty())},
                 {"verdicts", Json::array()},
                 {"no_report", diagnosis.no_report},
                 {"reported", log.reported.size()},
                 {"damaged", log.damaged},
                 {"blind_spot", log.blind_spot.empty() ? Json() : Json(log.blind_spot)},
                 {"counters", Json::object()}};
  for (const incident::Finding& finding : diagnosis.findings) report["verdicts"].push_back(VerdictJson(finding));
  for (const trace::Counter& counter : log.counters) report["counters"][counter.name] = counter.count;
  return report;
}

}  // namespace lockstep::detect
